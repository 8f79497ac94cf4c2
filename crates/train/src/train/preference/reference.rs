//! Log probabilities of all answers under the model that training starts from, computed once and stored in the run folder.

use super::comparison::uploaded;
use crate::config::TrainConfig;
use crate::data::records::{RecordSet, ReferenceLogProbs};
use crate::data::{Eval, Loader};
use crate::train::adapters::BaseRecord;
use netcl_model::checkpoint::{FileDtype, TensorData, read_tensors, write_tensors};
use netcl_model::layers::Mode;
use netcl_model::model::Model;
use netcl_tensor::{Error, Result, counted, no_grad};
use std::path::Path;
use std::time::{Duration, Instant};

/// File of a run folder with the log probabilities.
const FILE: &str = "reference.safetensors";
/// Names of its tensors: log probabilities (records, 2), the hash of data and model, and the record of the model's files.
const PARTS: [&str; 2] = ["train", "validation"];
const KEY: &str = "key";
const BASE: &str = "base";
/// Interval of messages about the progress.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// The model that training starts from.
pub(in crate::train) struct References<'a> {
    pub model: &'a dyn Model,
    /// Whether the model has its weights now.
    pub is_loaded: bool,
    pub folder: &'a Path,
}

/// Gives the records of a run the log probabilities of their answers under the reference: those of its folder, or new ones.
///
/// # Errors
/// `Format` if the stored ones belong to other data or another model, and the model no longer exists to compute them. Errors of the files, the data
/// and the device.
pub(in crate::train) fn prepare(
    reference: &References<'_>,
    config: &TrainConfig,
    loader: &mut Loader,
    eval: Option<&mut Eval>,
) -> Result<()> {
    if !config.objective.has_reference() {
        return Ok(());
    }
    let train = loader.records().cloned().ok_or_else(|| Error::internal("preferences without records"))?;
    let val = eval.as_ref().and_then(|eval| eval.records().cloned());
    let sets: Vec<&RecordSet> = [Some(&train), val.as_ref()].into_iter().flatten().collect();
    let sizes = [config.context, reference.model.config().vocab];
    let path = reference.folder.join(FILE);
    let tensors = if path.exists() { read_tensors(&path)? } else { Vec::new() };
    let base = base(config, &tensors)?;
    let key = key(&sets, &base)?;
    let found = match stored(&path, &tensors, &key, &sets)? {
        Some(found) => found,
        None if reference.is_loaded => {
            let found = computed(reference.model, &sets, config.batch, sizes)?;
            write(&path, [&key, &base], &found)?;
            found
        }
        None => {
            return Err(Error::format(format!(
                "{}: the log probabilities of the model that training started from are missing, or those of other data or another model. That model's \
                 weights are no longer in memory in a resumed run: restore the file and the data, or start a new run",
                path.display()
            )));
        }
    };
    let mut found = found.into_iter().map(ReferenceLogProbs::from);
    if let Some(train) = found.next() {
        loader.replace_records(|records| records.with_reference(train));
    }
    if let (Some(eval), Some(val)) = (eval, found.next()) {
        eval.replace_records(|records| records.with_reference(val));
    }
    Ok(())
}

/// Returns the hash of all rows and of the record of the model.
fn key(sets: &[&RecordSet], base: &[u8]) -> Result<Vec<u8>> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(base);
    for set in sets {
        hasher.update(&(set.len() as u64).to_le_bytes());
        for record in 0..set.len() {
            for words in set.both(record)? {
                hasher.update(&(words.len() as u64).to_le_bytes());
                words.iter().for_each(|(id, trained)| {
                    hasher.update(&(id << 1 | u32::from(*trained)).to_le_bytes());
                });
            }
        }
    }
    Ok(hasher.finalize().as_bytes().to_vec())
}

/// Computes the log probabilities of both rows of each record.
fn computed(
    model: &dyn Model,
    sets: &[&RecordSet],
    batch: usize,
    sizes: [usize; 2],
) -> Result<Vec<Vec<[f32; 2]>>> {
    let all: usize = sets.iter().map(|set| set.len()).sum();
    tracing::info!("computing the reference's log probabilities of {}, once", counted(all as u64, "record"));
    let (mut done, mut told) = (0, Instant::now());
    let mut of_set = |set: &&RecordSet| {
        let mut found = Vec::with_capacity(set.len());
        for first in (0..set.len()).step_by(batch.max(1)) {
            let records = first..(first + batch.max(1)).min(set.len());
            let count = records.len();
            let [x, y, _] = uploaded(model.params().device(), &set.answers(records, sizes)?)?;
            let sums = no_grad(|| model.token_losses(&x, &y, Mode::eval())?.0.sum_f32(&[1], false)?.neg())?;
            let sums = sums.to_vec()?;
            found.extend(sums[..count].iter().zip(&sums[count..]).map(|(a, b)| [*a, *b]));
            done += count;
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                tracing::info!("reference: {done} of {}", counted(all as u64, "record"));
            }
        }
        Ok(found)
    };
    sets.iter().map(&mut of_set).collect()
}

/// Returns the record of the files of `--init`. If the model is no longer there, it is the one that was stored.
fn base(config: &TrainConfig, tensors: &[TensorData]) -> Result<Vec<u8>> {
    let init = Path::new(config.init.as_deref().unwrap_or_default());
    if let (false, Some(stored)) = (init.exists(), tensors.iter().find(|tensor| tensor.name == BASE)) {
        return Ok(stored.bytes.clone());
    }
    serde_json::to_vec(&BaseRecord::read(init)?).map_err(|e| Error::internal(format!("{BASE}: {e}")))
}

/// Returns the log probabilities of the file; `None` if it has another key.
fn stored(
    path: &Path,
    tensors: &[TensorData],
    key: &[u8],
    sets: &[&RecordSet],
) -> Result<Option<Vec<Vec<[f32; 2]>>>> {
    let named = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    if named(KEY).is_none_or(|found| found.bytes != key) {
        return Ok(None);
    }
    let part = |(name, set): (&&str, &&RecordSet)| {
        let floats = named(name).map(TensorData::floats).transpose()?;
        let floats = floats.filter(|floats| floats.len() == 2 * set.len());
        let floats =
            floats.ok_or_else(|| Error::format(format!("{}: `{name}` is damaged", path.display())))?;
        Ok(floats.as_chunks::<2>().0.to_vec())
    };
    PARTS.iter().zip(sets).map(part).collect::<Result<_>>().map(Some)
}

fn write(path: &Path, [key, base]: [&[u8]; 2], found: &[Vec<[f32; 2]>]) -> Result<()> {
    let part = |(name, set): (&&str, &Vec<[f32; 2]>)| TensorData {
        name: (*name).into(),
        dtype: FileDtype::F32,
        shape: vec![set.len(), 2],
        bytes: set.iter().flatten().flat_map(|value| value.to_le_bytes()).collect(),
    };
    let mut tensors: Vec<_> = PARTS.iter().zip(found).map(part).collect();
    tensors.extend([(KEY, key), (BASE, base)].map(|(name, bytes)| TensorData {
        name: name.into(),
        dtype: FileDtype::U8,
        shape: vec![bytes.len()],
        bytes: bytes.to_vec(),
    }));
    // A run that is stopped while the file is written computes it again.
    let partial = path.with_extension("partial");
    write_tensors(&partial, &tensors)?;
    std::fs::rename(&partial, path).map_err(|e| Error::io("renaming", path, &e))
}
