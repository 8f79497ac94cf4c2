//! Expression trees that become one kernel: [`fuse`].
//!
//! A tree consists of elementwise ops, comparisons, selections, conversions, and sums and maxima over axes. Equal nodes are stored once,
//! and constants are folded. The gradient of a tree is another tree over the same inputs. Values between nodes are f32 and not rounded; the
//! result has the inputs' storage type.

mod build;
mod columns;
mod emit;
mod gradient;
mod interpret;
mod lazy;
mod node;
mod plan;
mod run;
mod show;
#[cfg(test)]
mod tests;

pub use build::Expr;
pub use lazy::{Lazy, explain_lazy, lazy, unfused};

use crate::array::Array;
use crate::ops::{check, observe};
use crate::{DType, Error, Result, Shape, Tensor, tape};
use node::Nodes;
use std::cell::RefCell;
use std::rc::Rc;

/// Computes a tree of expressions over `inputs`, and its gradient. It is one kernel if its reductions allow this.
///
/// The closure is called once with an expression for each input, and returns the expression to compute. The result has the inputs' storage
/// type, or f32 if they differ; integers are read as f32 and do not count. Scalars are kernel arguments: other values do not need another
/// kernel, unless they are folded.
///
/// ```
/// use netcl_tensor::{DType, Device, Settings, Tensor, fuse};
/// # fn main() -> netcl_tensor::Result<()> {
/// let device = Device::open("sim", &Settings::default())?;
/// let x = Tensor::from_f32(&device, [2, 2], &[0.0, 0.0, 1.0, 1.0], DType::F32)?;
/// let scale = Tensor::from_f32(&device, [2], &[1.0, 10.0], DType::F32)?;
/// // Computes a scaled softmax of each row in one kernel.
/// let y = fuse(&[&x, &scale], |t| {
///     let e = t[0].sub(&t[0].max(&[-1])?.detach())?.exp()?;
///     e.div(&e.sum(&[-1])?)?.mul(&t[1])
/// })?;
/// assert_eq!(y.to_vec()?, [0.5, 5.0, 0.5, 5.0]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Shape` if shapes cannot be broadcast; `Device` if the inputs are on different devices; errors of the closure.
pub fn fuse(inputs: &[&Tensor], f: impl FnOnce(&[Expr]) -> Result<Expr>) -> Result<Tensor> {
    let Some(first) = inputs.first() else {
        return Err(Error::shape("fuse: no inputs, expected at least one"));
    };
    check::one_device("fuse", inputs)?;
    let (nodes, root) = built(&shapes_of(inputs), f)?;
    let (device, dtype) = (first.device().clone(), result_type(inputs));
    let plain: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
    let compute = || tape::no_grad(|| run::run(&nodes, &device, (&[root], &[dtype]), &plain));
    let y = observe::noted("fuse", inputs, Vec::new, || {
        let y = device.within((tape::current_layer(), "fuse"), compute)?;
        y.into_iter().next().ok_or_else(|| Error::internal("fuse: the kernel gave no result"))
    })?;
    drop(plain);
    tape::record("fuse", inputs, y, move |inputs, dy| {
        backward(nodes, (&[root], &[dy]), (inputs, &needed(inputs)), &[]).map(|[grads, _]| grads)
    })
}

/// Returns which inputs need gradients.
fn needed(inputs: &[Tensor]) -> Vec<bool> {
    inputs.iter().map(Tensor::requires_grad).collect()
}

/// Computes the gradients of the tree of `f` for the `inputs` that need one, without the tape. `dy` is the gradient of the result. Other
/// inputs, and inputs that do not affect the result, get `None`.
///
/// # Errors
/// Errors of [`fuse`]; `Shape` if the shapes of `dy` and the result differ.
pub fn gradients(
    inputs: &[&Tensor],
    dy: &Tensor,
    f: impl FnOnce(&[Expr]) -> Result<Expr>,
) -> Result<Vec<Option<Tensor>>> {
    check::one_device("gradients", &[inputs, &[dy]].concat())?;
    let (nodes, root) = built(&shapes_of(inputs), f)?;
    if nodes.shape(root) != dy.shape() {
        let (is, expected) = (dy.shape(), nodes.shape(root));
        return Err(Error::shape(format!("gradients: dy has shape {is}, expected {expected}")));
    }
    let inputs: Vec<Tensor> = inputs.iter().map(|x| (*x).clone()).collect();
    let needs = needed(&inputs);
    tape::no_grad(|| backward(nodes, (&[root], &[dy]), (&inputs, &needs), &[]).map(|[grads, _]| grads))
}

/// Returns the tree of `f` over `inputs`, and the source of the kernels for the tree and its gradient.
///
/// # Errors
/// Errors of [`fuse`].
pub fn explain(inputs: &[&Tensor], f: impl FnOnce(&[Expr]) -> Result<Expr>) -> Result<String> {
    let Some(first) = inputs.first() else {
        return Err(Error::shape("explain: no inputs, expected at least one"));
    };
    let (mut nodes, root) = built(&shapes_of(inputs), f)?;
    let mut plain: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
    let show = |nodes: &Nodes, roots: &[usize], dtypes: &[DType], plain: &[Tensor]| -> Result<String> {
        let sources = tape::no_grad(|| run::sources(nodes, first.device(), (roots, dtypes), plain))?;
        Ok(format!("{}\n{}", show::tree(nodes, roots), sources.join("\n")))
    };
    let dtype = result_type(inputs);
    let forward = show(&nodes, &[root], &[dtype], &plain)?;
    plain.push(Tensor::zeros(first.device(), nodes.shape(root), dtype)?);
    let (roots, dtypes, _) = gradient_roots(&mut nodes, root, &plain, |i| inputs[i].dtype().is_float())?;
    if roots.is_empty() {
        return Ok(forward);
    }
    Ok(format!("{forward}\n# gradient\n{}", show(&nodes, &roots, &dtypes, &plain)?))
}

/// Computes the tree of `f` in f64 on the host, as a reference for kernels.
///
/// # Errors
/// Errors of [`fuse`].
pub fn reference(inputs: &[&Array], f: impl FnOnce(&[Expr]) -> Result<Expr>) -> Result<Array> {
    let shapes: Vec<&Shape> = inputs.iter().map(|x| &x.shape).collect();
    let (nodes, root) = built(&shapes, f)?;
    let inputs: Vec<Array> = inputs.iter().map(|x| (*x).clone()).collect();
    nodes
        .interpret(&[root], &inputs)
        .pop()
        .ok_or_else(|| Error::internal("fuse: the interpreter gave no result"))
}

/// Computes several results of one tree, off the tape and stored as `dtypes`. Operations that are defined as trees use this.
///
/// # Errors
/// Errors of [`fuse`].
pub(crate) fn computed<const I: usize, const N: usize>(
    inputs: &[&Tensor; I],
    dtypes: [DType; N],
    f: impl FnOnce(&[Expr; I]) -> Result<[Expr; N]>,
) -> Result<[Tensor; N]> {
    let Some(first) = inputs.first() else {
        return Err(Error::internal("a tree does not have inputs"));
    };
    let (nodes, roots) = built_all(&shapes_of(inputs), |given| {
        f(given.try_into().map_err(|_| Error::internal("an input of a tree is missing"))?)
    })?;
    let plain: Vec<Tensor> = inputs.iter().map(|x| x.detach()).collect();
    let made = tape::no_grad(|| run::run(&nodes, first.device(), (&roots, &dtypes), &plain))?;
    <[Tensor; N]>::try_from(made).map_err(|_| Error::internal("a result of a tree is missing"))
}

fn built(inputs: &[&Shape], f: impl FnOnce(&[Expr]) -> Result<Expr>) -> Result<(Nodes, usize)> {
    let (nodes, [root]) = built_all(inputs, |given| f(given).map(|root| [root]))?;
    Ok((nodes, root))
}

fn built_all<const N: usize>(
    inputs: &[&Shape],
    f: impl FnOnce(&[Expr]) -> Result<[Expr; N]>,
) -> Result<(Nodes, [usize; N])> {
    let nodes = Rc::new(RefCell::new(Nodes::default()));
    let given: Vec<Expr> =
        inputs.iter().enumerate().map(|(i, shape)| Expr::input(&nodes, i, shape)).collect();
    let mut roots = [0; N];
    for (root, made) in roots.iter_mut().zip(f(&given)?) {
        *root = made.of(&nodes)?;
    }
    drop(given);
    let nodes = Rc::try_unwrap(nodes).map_or_else(|shared| shared.borrow().clone(), RefCell::into_inner);
    Ok((nodes, roots))
}

fn shapes_of<'a>(inputs: &[&'a Tensor]) -> Vec<&'a Shape> {
    inputs.iter().map(|x| x.shape()).collect()
}

fn result_type(inputs: &[&Tensor]) -> DType {
    let mut floats = inputs.iter().map(|x| x.dtype()).filter(|dtype| dtype.is_float());
    let first = floats.next().unwrap_or(DType::F32);
    if floats.all(|dtype| dtype == first) { first } else { DType::F32 }
}

/// Gradients as nodes, their types, and the indices of their inputs.
type Gradients = (Vec<usize>, Vec<DType>, Vec<usize>);

/// Builds the gradients of the inputs that need one. The last of `inputs` is the gradient of the root.
fn gradient_roots(
    nodes: &mut Nodes,
    root: usize,
    inputs: &[Tensor],
    needs: impl Fn(usize) -> bool,
) -> Result<Gradients> {
    gradients_of(nodes, &[root], inputs, needs)
}

/// Builds the gradients for several roots, whose gradients are the last of `inputs`.
fn gradients_of(
    nodes: &mut Nodes,
    roots: &[usize],
    inputs: &[Tensor],
    needs: impl Fn(usize) -> bool,
) -> Result<Gradients> {
    let first = inputs.len() - roots.len();
    let mut pairs = Vec::with_capacity(roots.len());
    for (i, root) in roots.iter().enumerate() {
        let shape = nodes.shape(*root).clone();
        pairs.push((*root, nodes.input(first + i, &shape)));
    }
    let numbers: Vec<usize> = (0..first).filter(|i| needs(*i)).collect();
    let leaves: Vec<usize> = numbers.iter().map(|i| nodes.input(*i, inputs[*i].shape())).collect();
    let found = nodes.gradients(&pairs, &leaves)?;
    let pairs = numbers.into_iter().zip(found).filter_map(|(i, id)| id.map(|id| (i, id)));
    let (numbers, roots): (Vec<usize>, Vec<usize>) = pairs.unzip();
    let dtypes = numbers.iter().map(|i| inputs[*i].dtype()).collect();
    Ok((roots, dtypes, numbers))
}

/// Computes the gradients of the `inputs` that `needs` marks, from the gradients of `roots`. Also returns the gradients that the nodes in
/// `asked` receive from other roots.
fn backward(
    mut nodes: Nodes,
    (roots, dys): (&[usize], &[&Tensor]),
    (inputs, needs): (&[Tensor], &[bool]),
    asked: &[usize],
) -> Result<[Vec<Option<Tensor>>; 2]> {
    let mut out: Vec<Option<Tensor>> = vec![None; inputs.len()];
    let mut within: Vec<Option<Tensor>> = vec![None; asked.len()];
    let Some(device) = dys.first().map(|dy| dy.device()) else { return Ok([out, within]) };
    let mut all: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
    for (dy, root) in dys.iter().zip(roots) {
        all.push(dy.detach().reshape(nodes.shape(*root))?);
    }
    let (mut wanted, mut dtypes, numbers) = gradients_of(&mut nodes, roots, &all, |i| needs[i])?;
    let mut places = Vec::new();
    for (at, node) in asked.iter().enumerate() {
        let others = roots.iter().enumerate().filter(|(_, root)| *root != node);
        let mut pairs = Vec::new();
        for (i, root) in others {
            let shape = nodes.shape(*root).clone();
            pairs.push((*root, nodes.input(inputs.len() + i, &shape)));
        }
        if let Some(id) = nodes.gradients(&pairs, &[*node])?.into_iter().flatten().next() {
            wanted.push(id);
            dtypes.push(dys[0].dtype());
            places.push(at);
        }
    }
    let mut found = run::run(&nodes, device, (&wanted, &dtypes), &all)?;
    for (at, grad) in places.into_iter().zip(found.split_off(numbers.len())) {
        within[at] = Some(grad.reshape(nodes.shape(asked[at]))?);
    }
    for (i, grad) in numbers.into_iter().zip(found) {
        out[i] = Some(grad.reshape(inputs[i].shape())?);
    }
    Ok([out, within])
}
