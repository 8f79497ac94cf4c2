//! The options of attention, as attributes of calls by name.

use super::AttentionOptions;
use crate::ops::prelude::*;

pub(super) fn declared(call: Call) -> Call {
    let call = call
        .default("causal", false)
        .optional("scale", AttributeKind::Float)
        .optional("window", AttributeKind::Int);
    call.optional("softcap", AttributeKind::Float).default("dropout", 0.0).random()
}

/// Builds the options from those attributes; `scores` is the shape (B, H, T, S) of the dropout mask.
pub(super) fn given(a: &Args<'_>, scores: [usize; 4]) -> Result<AttentionOptions> {
    let (scale, window, softcap) = (a.find("scale")?, a.find("window")?, a.find("softcap")?);
    let options =
        AttentionOptions { causal: a.get("causal")?, scale, window, softcap, ..AttentionOptions::default() };
    options.drop(a.get("dropout")?, scores, &mut a.generator()?)
}

pub(super) fn attributes(options: &AttentionOptions) -> Attributes {
    let AttentionOptions { causal, scale, window, softcap, dropout, positions } = options.clone();
    let mut out = vec![
        ("causal", causal.into()),
        ("scale", scale.into()),
        ("window", window.into()),
        ("softcap", softcap.into()),
    ];
    if positions.is_some() {
        // Calls by name do not have this attribute, so they refuse it.
        out.push(("documents", true.into()));
    }
    if let Some(mask) = dropout {
        out.extend([
            ("dropout", mask.probability.into()),
            ("seed", mask.seed.into()),
            ("offset", mask.offset.into()),
        ]);
    }
    out
}
