//! Every call of every operation, by name.

use super::call::{Call, Value};
use super::{OPS, einsum, losses, rearrange};
use crate::{Error, Result, Tensor};
use netcl_device::did_you_mean;
use std::collections::HashMap;
use std::sync::LazyLock;

struct Registry {
    calls: Vec<Call>,
    places: HashMap<&'static str, usize>,
}

/// The calls of all operations' files, combined.
static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let composed = [rearrange::calls(), losses::calls(), einsum::calls()].into_iter().flatten();
    let calls: Vec<Call> = OPS.iter().flat_map(|op| (op.calls)()).chain(composed).collect();
    let places = calls.iter().enumerate().map(|(i, call)| (call.name, i)).collect();
    Registry { calls, places }
});

/// Returns every function that can be called by name, in the order of [`OPS`].
pub fn calls() -> &'static [Call] {
    &REGISTRY.calls
}

/// Returns the call with this name.
///
/// # Errors
/// `Format` with a similar name, if there is one.
pub fn find(name: &str) -> Result<&'static Call> {
    let found = REGISTRY.places.get(name).and_then(|i| REGISTRY.calls.get(*i));
    found.ok_or_else(|| {
        let near = did_you_mean(name, REGISTRY.calls.iter().map(|call| call.name));
        Error::format(format!("unknown operation {name:?}{near}"))
    })
}

/// Calls an operation by name: [`Call::invoke`].
///
/// # Errors
/// Errors of [`find`] and [`Call::invoke`].
pub fn call(name: &str, inputs: &[Option<&Tensor>], attributes: &[(&str, Value)]) -> Result<Vec<Tensor>> {
    find(name)?.invoke(inputs, attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::call::{Arity, AttributeKind};
    use crate::suite::test_device;
    use crate::{DType, Device};
    use std::collections::BTreeSet;

    /// Only one operation does not have a call, and its file says why.
    #[test]
    fn every_op_can_be_called_and_names_are_used_once() {
        let without: Vec<&str> = OPS.iter().filter(|op| (op.calls)().is_empty()).map(|op| op.name).collect();
        assert_eq!(without, ["optimizer::Update"]);
        let names: BTreeSet<&str> = calls().iter().map(|call| call.name).collect();
        assert_eq!(names.len(), calls().len(), "a name stands for two calls");
        for call in calls() {
            assert!(
                call.doc.ends_with('.') && !call.doc.contains('\n'),
                "{}: a paragraph, {}",
                call.name,
                call.doc
            );
            assert!(!call.inputs.is_empty() && !call.results.is_empty(), "{}", call.name);
            let arguments = call.inputs.iter().map(|i| i.name).chain(call.attributes.iter().map(|a| a.name));
            let distinct: BTreeSet<&str> = arguments.clone().collect();
            assert_eq!(distinct.len(), arguments.count(), "{}: a name stands for two arguments", call.name);
            let (last, others) = call.inputs.split_last().unwrap();
            assert!(others.iter().all(|i| i.arity != Arity::List), "{}: {} comes last", call.name, last.name);
            let required = call.inputs.iter().rposition(|i| i.arity == Arity::One);
            let optional = call.inputs.iter().position(|i| i.arity == Arity::Optional);
            assert!(
                required.zip(optional).is_none_or(|(r, o)| r < o),
                "{}: optional inputs come last",
                call.name
            );
        }
    }

    fn tensor(device: &Device, dims: &[usize]) -> Tensor {
        let values: Vec<f32> = (0..dims.iter().product::<usize>()).map(|i| i as f32 - 2.0).collect();
        Tensor::from_f32(device, dims, &values, DType::F32).unwrap()
    }

    type Case<'a> = (&'static str, &'a [&'a Tensor], &'a [(&'a str, Value)], &'a [(&'a [usize], &'a [f32])]);

    /// Runs each case and compares; returns their names.
    fn checked(cases: &[Case<'_>]) -> BTreeSet<&'static str> {
        for (name, inputs, attributes, expected) in cases {
            let inputs: Vec<Option<&Tensor>> = inputs.iter().map(|x| Some(*x)).collect();
            let got = call(name, &inputs, attributes).unwrap();
            let got: Vec<_> = got.iter().map(|y| (y.dims(), y.to_vec().unwrap())).collect();
            let expected: Vec<_> = expected.iter().map(|(dims, values)| (*dims, values.to_vec())).collect();
            assert_eq!(got, expected, "{name}");
        }
        cases.iter().map(|(name, ..)| *name).collect()
    }

    fn layers(device: &Device) -> BTreeSet<&'static str> {
        let (a, b) = (tensor(device, &[2, 3]), tensor(device, &[3]));
        let (row, line) = (b.reshape([1, 3]).unwrap(), b.reshape([1, 1, 3]).unwrap());
        let ones = |dims: &[usize]| Tensor::ones(device, dims, DType::F32).unwrap();
        let (taps, three, one_channel) = (ones(&[1, 1, 2]), ones(&[3]), ones(&[1]));
        let square = tensor(device, &[1, 1, 1, 5]); // -2 to 2
        let one = || Value::Int(1);
        let twice: &[f32] = &[-2.0, -1.0, 0.0, -2.0, -1.0, 0.0];
        checked(&[
            ("conv1d", &[&line, &taps], &[], &[(&[1, 1, 2], &[-3.0, -1.0])]),
            ("batch_norm_inference", &[&row, &b, &b, &b, &three], &[], &[(&[1, 3], &[-2.0, -1.0, 0.0])]),
            ("group_norm", &[&a, &b, &b], &[("groups", Value::Int(3))], &[(&[2, 3], twice)]),
            (
                "instance_norm",
                &[&square, &one_channel, &one_channel],
                &[("eps", 2.0.into())],
                &[(&[1, 1, 1, 5], &[0.0, 0.5, 1.0, 1.5, 2.0])],
            ),
            ("adaptive_avg_pool2d", &[&square], &[("output", one())], &[(&[1, 1, 1, 1], &[0.0])]),
            ("adaptive_max_pool2d", &[&square], &[("output", one())], &[(&[1, 1, 1, 1], &[2.0])]),
        ])
    }

    fn rearranged(device: &Device) -> BTreeSet<&'static str> {
        let (a, b) = (tensor(device, &[2, 3]), tensor(device, &[3]));
        let ids = Tensor::from_u32(device, [2], &[2, 0]).unwrap();
        let int = |i: i64| Value::Int(i);
        let bilinear = || ("mode", Value::from("bilinear"));
        let doubled: &[f32] = &[-2.0, -2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
        let corners: &[f32] = &[-2.0, -1.0, 0.0, -0.5, 0.5, 1.5, 1.0, 2.0, 3.0];
        let amounts = || ("amounts", Value::from([1, 2]));
        let padded = [amounts(), ("value", 9.0.into())];
        let cornered = [("size", int(3)), bilinear(), ("align_corners", true.into())];
        checked(&[
            ("index_select", &[&a, &ids], &[("axis", int(1))], &[(&[2, 2], &[0.0, -2.0, 3.0, 1.0])]),
            ("flip", &[&a], &[("axes", [0, -1].into())], &[(&[2, 3], &[3.0, 2.0, 1.0, 0.0, -1.0, -2.0])]),
            ("roll", &[&a], &[("shift", int(-1))], &[(&[2, 3], &[-1.0, 0.0, -2.0, 2.0, 3.0, 1.0])]),
            ("pad", &[&b], &padded, &[(&[6], &[9.0, -2.0, -1.0, 0.0, 9.0, 9.0])]),
            (
                "pad",
                &[&b],
                &[amounts(), ("mode", "reflect".into())],
                &[(&[6], &[-1.0, -2.0, -1.0, 0.0, -1.0, -2.0])],
            ),
            (
                "pad",
                &[&b],
                &[amounts(), ("mode", "replicate".into())],
                &[(&[6], &[-2.0, -2.0, -1.0, 0.0, 0.0, 0.0])],
            ),
            ("einsum", &[&a, &b], &[("formula", "ij,j->i".into())], &[(&[2], &[5.0, -4.0])]),
            ("one_hot", &[&ids], &[("classes", int(3))], &[(&[2, 3], &[0.0, 0.0, 1.0, 1.0, 0.0, 0.0])]),
            ("triu", &[&a], &[("diagonal", int(1))], &[(&[2, 3], &[0.0, -1.0, 0.0, 0.0, 0.0, 3.0])]),
            ("interpolate", &[&a], &[("size", [2, 6].into())], &[(&[2, 6], doubled)]),
            ("interpolate", &[&a], &[("size", [1, 2].into()), bilinear()], &[(&[1, 2], &[-0.25, 1.25])]),
            ("interpolate", &[&a], &cornered, &[(&[3, 3], corners)]),
        ])
    }

    fn losses(device: &Device) -> BTreeSet<&'static str> {
        let (a, b) = (tensor(device, &[2, 3]), tensor(device, &[3]));
        let ones = Tensor::ones(device, [3], DType::F32).unwrap();
        let zeros = Tensor::zeros(device, [3], DType::F32).unwrap();
        let ids = Tensor::from_u32(device, [2], &[2, 0]).unwrap();
        let how = |name: &str| ("reduction", Value::from(name));
        checked(&[
            ("mse_loss", &[&b, &ones], &[how("sum")], &[(&[], &[14.0])]),
            ("l1_loss", &[&b, &ones], &[how("sum")], &[(&[], &[6.0])]),
            ("huber_loss", &[&b, &ones], &[("delta", 2.0.into()), how("none")], &[(&[3], &[4.0, 2.0, 0.5])]),
            ("bce_with_logits", &[&zeros, &ones], &[how("none")], &[(&[3], &[std::f32::consts::LN_2; 3])]),
            ("kl_div", &[&b, &zeros], &[], &[(&[], &[0.0])]),
            ("nll_loss", &[&a, &ids], &[], &[(&[], &[-0.5])]),
        ])
    }

    /// Tests the functions that are not separate operations. The suite calls all others on every sample.
    #[test]
    fn composed_functions_are_called_by_name() {
        let device = test_device().unwrap();
        let (a, b) = (tensor(&device, &[2, 3]), tensor(&device, &[3])); // -2 -1 0 1 2 3 and -2 -1 0
        let int = |i: i64| Value::Int(i);
        let cases: &[Case<'_>] = &[
            ("sub_scalar", &[&b], &[("s", int(1))], &[(&[3], &[-3.0, -2.0, -1.0])]),
            ("div_scalar", &[&b], &[("s", Value::Float(2.0))], &[(&[3], &[-1.0, -0.5, 0.0])]),
            ("contiguous", &[&b], &[], &[(&[3], &[-2.0, -1.0, 0.0])]),
            ("unsqueeze", &[&b], &[("axis", int(-1))], &[(&[3, 1], &[-2.0, -1.0, 0.0])]),
            ("squeeze", &[&b.reshape([1, 3]).unwrap()], &[("axis", int(0))], &[(&[3], &[-2.0, -1.0, 0.0])]),
            ("transpose", &[&a], &[], &[(&[3, 2], &[-2.0, 1.0, -1.0, 2.0, 0.0, 3.0])]),
            ("sum_to", &[&a], &[("shape", int(3))], &[(&[3], &[-1.0, 1.0, 3.0])]),
            ("eq", &[&a, &b], &[], &[(&[2, 3], &[1.0, 1.0, 1.0, 0.0, 0.0, 0.0])]),
            ("lt", &[&b, &a], &[], &[(&[2, 3], &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0])]),
            ("le", &[&b, &a], &[], &[(&[2, 3], &[1.0; 6])]),
            ("gt", &[&a, &b], &[], &[(&[2, 3], &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0])]),
            ("ge", &[&b, &a], &[], &[(&[2, 3], &[1.0, 1.0, 1.0, 0.0, 0.0, 0.0])]),
            ("tril", &[&a], &[("diagonal", int(0))], &[(&[2, 3], &[-2.0, 0.0, 0.0, 1.0, 2.0, 0.0])]),
            ("stack", &[&b, &b], &[("axis", int(0))], &[(&[2, 3], &[-2.0, -1.0, 0.0, -2.0, -1.0, 0.0])]),
            ("stack", &[&b, &b], &[("axis", int(-1))], &[(&[3, 2], &[-2.0, -2.0, -1.0, -1.0, 0.0, 0.0])]),
            ("split", &[&b], &[("lengths", Value::from([1, 2]))], &[(&[1], &[-2.0]), (&[2], &[-1.0, 0.0])]),
            (
                "chunk",
                &[&a],
                &[("count", int(2))],
                &[(&[1, 3], &[-2.0, -1.0, 0.0]), (&[1, 3], &[1.0, 2.0, 3.0])],
            ),
        ];
        let mut called = checked(cases);
        called.extend(layers(&device));
        called.extend(rearranged(&device));
        called.extend(losses(&device));
        // The first call of each operation has the operation's name and is tested on the suite's samples.
        let ops = OPS.iter().flat_map(|op| (op.calls)().into_iter().take(1).map(|call| call.name));
        called.extend(ops);
        called.extend(["sum_f32", "mean"]);
        called.extend(crate::ops::elementwise::UNARY.iter().map(|row| row.name));
        called.extend(crate::ops::elementwise::BINARY.iter().map(|row| row.name));
        let all: BTreeSet<&str> = calls().iter().map(|call| call.name).collect();
        assert_eq!(called, all, "a composed function lacks its line here");
    }

    #[test]
    fn what_is_wrong_with_a_call_is_said() {
        let device = test_device().unwrap();
        let x = tensor(&device, &[2, 3]);
        let message = |name: &str, inputs: &[Option<&Tensor>], attributes: &[(&str, Value)]| {
            call(name, inputs, attributes).unwrap_err().message().to_owned()
        };
        for (got, expected) in [
            (message("sofmax", &[Some(&x)], &[]), "unknown operation \"sofmax\"; did you mean softmax?"),
            (message("softmax", &[], &[]), "softmax: missing input x; inputs: x"),
            (message("add", &[Some(&x), None], &[]), "add: missing input b; inputs: a, b"),
            (message("exp", &[Some(&x), Some(&x)], &[]), "exp: 2 inputs, expected 1: x"),
            (message("cat", &[Some(&x), None], &[]), "cat: a tensor is missing; inputs: tensors"),
            (message("topk", &[Some(&x)], &[]), "topk: attribute k is missing, expected an integer"),
            (
                message("softmax", &[Some(&x)], &[("axes", Value::Int(1))]),
                "softmax: unknown attribute \"axes\"; expected one of axis; did you mean axis?",
            ),
            (
                message("topk", &[Some(&x)], &[("k", Value::Int(-1))]),
                "topk: attribute k is -1, expected an integer of at least 0",
            ),
            (
                message("gated", &[Some(&x)], &[("gate", "swish".into())]),
                "gated: attribute gate is \"swish\", expected one of silu, gelu_tanh, gelu, relu",
            ),
            (
                message("softmax", &[Some(&x)], &[("axis", 1.5.into())]),
                "softmax: attribute axis is 1.5, expected an integer",
            ),
            (
                message("reshape", &[Some(&x)], &[("shape", [-1, 4].into())]),
                "reshape: sizes [-1, 4], expected the 6 elements of x [2, 3], with at most one -1",
            ),
        ] {
            assert_eq!(got, expected);
        }
        let axis = ("axis", Value::Int(0));
        assert!(message("softmax", &[Some(&x)], &[axis.clone(), axis]).contains("axis is given twice"));
        let y = call("reshape", &[Some(&x)], &[("shape", [-1, 2].into())]).unwrap();
        assert_eq!(y[0].dims(), [3, 2]);
        assert_eq!(
            find("gated").unwrap().attributes[0].kind,
            AttributeKind::Choice(&["silu", "gelu_tanh", "gelu", "relu"])
        );
    }
}
