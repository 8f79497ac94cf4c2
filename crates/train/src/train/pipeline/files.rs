//! A stage's part of the optimizer's state of a whole model. The state equals that of a run without a pipeline.

use netcl_model::checkpoint::{TensorData, TensorToWrite};
use netcl_model::decoder::Decoder;
use netcl_model::model::Model as _;
use std::collections::BTreeSet;

/// Returns the part of a whole model's state that `decoder`, a stage, needs: that of its parameters, and the state that belongs to no parameter. The
/// copy of a tied embedding uses the embedding's.
pub fn own_state(decoder: &Decoder, state: &[TensorData]) -> Vec<TensorData> {
    let here: BTreeSet<&str> = decoder.params().list().iter().filter_map(|p| p.name()).collect();
    let all: BTreeSet<String> = decoder.config().shapes().map(|shape| shape.name).collect();
    let copy = decoder.copied_table();
    let copy = copy.as_ref().and_then(|(copy, table)| Some((copy.name()?, table.as_str())));
    let of = |tensor: &TensorData| {
        let (param, kind) = tensor.name.rsplit_once('.').unwrap_or((&tensor.name, ""));
        match copy {
            Some((copy, table)) if param == table => {
                Some(TensorData { name: format!("{copy}.{kind}"), ..tensor.clone() })
            }
            _ if here.contains(param) || !all.contains(param) => Some(tensor.clone()),
            _ => None,
        }
    };
    state.iter().filter_map(of).collect()
}

/// Returns a stage's contribution to the state of the whole model. The first rank contributes the state that belongs to no parameter; the copy of a
/// tied embedding contributes nothing.
pub fn whole_state(
    decoder: &Decoder,
    state: Vec<TensorToWrite<'static>>,
    is_first: bool,
) -> Vec<TensorToWrite<'static>> {
    let copy = decoder.copied_table().and_then(|(copy, _)| copy.name().map(|name| format!("{name}.")));
    let here: BTreeSet<&str> = decoder.params().list().iter().filter_map(|p| p.name()).collect();
    let adds = |tensor: &TensorToWrite<'static>| {
        let param = tensor.name.rsplit_once('.').map_or("", |(param, _)| param);
        let of_copy = copy.as_ref().is_some_and(|copy| tensor.name.starts_with(copy.as_str()));
        !of_copy && (is_first || here.contains(param))
    };
    state.into_iter().filter(adds).collect()
}
