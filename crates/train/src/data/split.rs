//! The validation part: provided by the data, or the end of the token sequence.

use super::{Corpus, Tokens};
use netcl_device::{Error, Result};

/// Training and validation tokens that do not overlap.
#[derive(Clone, Debug)]
pub struct Splits {
    /// At least one window.
    pub train: Tokens,
    /// At least one window; `None` without validation.
    pub val: Option<Tokens>,
}

/// Splits off the last `fraction` (in [0, 1)) of the tokens for validation, unless the data has a validation part. `Format` if a part has fewer
/// than `context + 1` tokens.
pub fn split(corpus: Corpus, fraction: f64, context: usize) -> Result<Splits> {
    if !(0.0..1.0).contains(&fraction) {
        return Err(Error::format(format!("--val-split {fraction} must be at least 0 and below 1")));
    }
    let all = corpus.train.len();
    check_length("the data", all, context, "")?;
    let (train, val) = match corpus.val {
        Some(val) => (corpus.train, Some(val)),
        None if fraction == 0.0 => (corpus.train, None),
        None => {
            // Cuts like nanoGPT: int(n * 0.9) for a fraction of 0.1.
            let cut = (all as f64 * (1.0 - fraction)) as usize;
            (corpus.train.slice(0..cut), Some(corpus.train.slice(cut..all)))
        }
    };
    check_length("the training part", train.len(), context, ", lower --val-split")?;
    if let Some(val) = &val {
        check_length("the validation part", val.len(), context, ", raise --val-split (0 disables it)")?;
    }
    Ok(Splits { train, val })
}

/// Returns `Format` if `len` tokens are fewer than a window needs.
fn check_length(what: &str, len: usize, context: usize, also: &str) -> Result<()> {
    let need = context + 1;
    if len >= need {
        return Ok(());
    }
    let tokens = if len == 1 { "token" } else { "tokens" };
    Err(Error::format(format!(
        "{what} has {len} {tokens}, but a context of {context} needs at least {need}; lower --context{also}, or give more --data"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(train: u32, val: Option<u32>) -> Corpus {
        let tokens = |len: u32| Tokens::from((0..len).collect::<Vec<_>>());
        Corpus { train: tokens(train), val: val.map(tokens) }
    }

    #[test]
    fn cuts_the_tail() {
        let splits = split(corpus(100, None), 0.1, 8).unwrap();
        assert_eq!(splits.train.len(), 90);
        assert_eq!(splits.val.unwrap().to_vec().unwrap(), (90..100).collect::<Vec<_>>());
        assert!(split(corpus(100, None), 0.0, 8).unwrap().val.is_none());
        let own = split(corpus(100, Some(20)), 0.5, 8).unwrap();
        assert_eq!((own.train.len(), own.val.unwrap().len()), (100, 20));
        // tinyshakespeare: nanoGPT's own numbers.
        assert_eq!(split(corpus(1_115_394, None), 0.1, 64).unwrap().train.len(), 1_003_854);
    }

    #[test]
    fn short_data_names_both_numbers() {
        for (corpus, fraction, parts) in [
            (corpus(1, None), 0.1, ["the data has 1 token,", "context of 8 needs at least 9"]),
            (corpus(8, None), 0.1, ["the data has 8 tokens", "lower --context"]),
            (corpus(20, None), 0.1, ["the validation part has 2 tokens", "raise --val-split"]),
            (corpus(20, None), 0.9, ["the training part has 1 token,", "lower --val-split"]),
            (corpus(20, Some(3)), 0.1, ["the validation part has 3 tokens", "needs at least 9"]),
            (corpus(20, None), 1.0, ["--val-split 1", "below 1"]),
            (corpus(20, None), f64::NAN, ["--val-split NaN", "below 1"]),
        ] {
            let message = split(corpus, fraction, 8).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }
}
