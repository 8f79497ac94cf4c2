//! Selects ops by name.

use crate::ops::{OPS, OpEntry};
use crate::{DType, Error, Result};
use netcl_device::did_you_mean;
use std::collections::BTreeSet;

/// Returns the ops whose name contains `part`. Without a match, returns the ops that have samples with that name, restricted to these
/// samples, such as one elementwise op. The list lives until the program ends.
///
/// # Errors
/// `Format` with the available names.
pub fn select(part: &str) -> Result<&'static [OpEntry]> {
    let mut found: Vec<OpEntry> = OPS.iter().copied().filter(|op| op.name.contains(part)).collect();
    let mut samples = BTreeSet::new();
    if found.is_empty() {
        for op in OPS {
            let named: BTreeSet<&'static str> =
                op.cases(DType::F32)?.iter().map(|case| case.sample).collect();
            found.extend(named.get(part).map(|sample| OpEntry { sample: Some(sample), ..*op }));
            samples.extend(named.into_iter().filter(|sample| !sample.is_empty()));
        }
    }
    if found.is_empty() {
        let ops: Vec<&str> = OPS.iter().map(|op| op.name).collect();
        let samples: Vec<&str> = samples.into_iter().collect();
        let known = OPS.iter().flat_map(|op| op.name.split("::")).chain(samples.iter().copied());
        return Err(Error::format(format!(
            "no op is called {part:?}; ops are {}; single samples are {}{}",
            ops.join(", "),
            samples.join(", "),
            did_you_mean(part, known)
        )));
    }
    Ok(found.leak())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // helpers of tests
mod tests {
    use super::*;

    #[test]
    fn an_op_is_named_by_a_part_of_its_name_or_by_a_sample() {
        let names = |part: &str| select(part).unwrap().iter().map(|op| op.name).collect::<Vec<_>>();
        assert_eq!(names("softmax"), ["softmax::Softmax", "softmax::LogSoftmax"]);
        let row = select("rsqrt").unwrap();
        assert_eq!(row.iter().map(|op| op.name).collect::<Vec<_>>(), ["elementwise::Unary"]);
        let cases = row[0].cases(DType::F32).unwrap();
        assert!(cases.len() >= 3 && cases.iter().all(|case| case.sample == "rsqrt"));
        assert!(cases.len() < OPS[0].cases(DType::F32).unwrap().len());
    }

    #[test]
    fn one_that_there_is_not_is_answered_with_those_that_there_are() {
        let error = select("sofmax").map(|ops| ops.len()).unwrap_err();
        let message = error.message();
        for expected in ["no op is called \"sofmax\"", "softmax::LogSoftmax", "gelu_tanh", "did you mean"] {
            assert!(message.contains(expected), "{message}");
        }
    }
}
