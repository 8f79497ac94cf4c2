//! Checks, before such steps are timed, that the losses of a few steps on one batch are those of a learning model.

use netcl::prelude::*;

/// An untrained model: its loss is ln of the number of classes, within a tolerance.
pub struct New {
    pub classes: usize,
    pub within: f32,
}

/// Refuses losses that are not those of a learning model. An untrained model guesses; the loss of a repeated batch falls (if that is requested); and
/// a replayed step equals an eager one (`eager`).
pub fn check(bench: &str, losses: &[f32], eager: Option<&[f32]>, new: New, falls: bool) -> Result<()> {
    let wrong =
        |why: String| Err(Error::internal(format!("bench {bench}: the losses {losses:?} are wrong: {why}")));
    let guess = (new.classes as f32).ln();
    let (Some(first), Some(last)) = (losses.first(), losses.last()) else {
        return wrong("there are none".into());
    };
    match eager {
        _ if losses.iter().any(|l| !l.is_finite()) => wrong("not all are finite".into()),
        _ if (first - guess).abs() > new.within => {
            wrong(format!("an untrained model guesses, so the first should be about {guess:.2}"))
        }
        _ if falls && last >= first => wrong("the same batch is repeated, but the loss does not fall".into()),
        Some(eager) if eager != losses => wrong(format!("without a graph they are {eager:?}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_a_model_that_learns() {
        let new = || New { classes: 10, within: 1.0 };
        let learns = [2.4, 2.3, 2.2, 2.1];
        check("x", &learns, Some(&learns), new(), true).unwrap();
        check("x", &[2.4; 4], None, new(), false).unwrap();
        for (losses, eager, part) in [
            ([2.4, f32::NAN, 2.2, 2.1], None, "finite"),
            ([0.0; 4], None, "guesses"),
            ([3.4, 3.3, 3.2, 3.1], None, "guesses"),
            ([2.4; 4], None, "does not fall"),
            (learns, Some([2.4, 2.3, 2.2, 2.0]), "without a graph they are"),
        ] {
            let eager = eager.as_ref().map(|e| &e[..]);
            let message = check("x", &losses, eager, new(), true).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        check("x", &[3.4, 3.3], None, New { within: 2.0, ..new() }, true).unwrap();
        assert!(check("x", &[], None, new(), true).is_err());
    }
}
