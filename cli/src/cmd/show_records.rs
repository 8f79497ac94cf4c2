//! `netcl train --show N`: prints records as the model reads them, and which of their tokens are trained.

use crate::context::Context;
use crate::out;
use crate::reading::ReadingBar;
use netcl::device::counted;
use netcl::prelude::*;
use netcl::train::config::TrainConfig;
use netcl::train::{InputData, open_inputs};

/// Prints the first `count` records of the training part. Writes nothing.
///
/// # Errors
/// Errors of the data; `Format` for data that is not records.
pub fn show(config: &TrainConfig, count: usize, context: &Context) -> Result<()> {
    config.validate()?;
    let mut reading = ReadingBar::new(context);
    let inputs = open_inputs(config, None, None, &mut |p| reading.show(p))?;
    drop(reading);
    let InputData::Records { splits, tokenizer, .. } = &inputs.data else {
        return Err(Error::format(
            "--show is for records such as conversations; this data is text, of which every token is trained",
        ));
    };
    for record in 0..count.min(splits.train.len()) {
        let tokens = splits.train.record(record)?;
        let trained = tokens.iter().filter(|(_, trained)| *trained).count();
        let count = counted(tokens.len() as u64, "token");
        let mut parts = vec![(format!("record {}: {count}, {trained} of them trained\n", record + 1), false)];
        for part in tokens.chunk_by(|a, b| a.1 == b.1) {
            let ids: Vec<u32> = part.iter().map(|(id, _)| *id).collect();
            parts.push((tokenizer.text(&ids)?, part.iter().all(|(_, trained)| !trained)));
        }
        parts.push(("\n\n".into(), false));
        out::parts(&parts)?;
    }
    out::note(if out::dims() {
        "dimmed tokens are not trained"
    } else {
        "tokens between ⟨ and ⟩ are not trained"
    });
    Ok(())
}
