//! Computes deferred ops and records them on the tape.

use super::super::node::{NodeKind, Nodes};
use super::super::{backward, gradients_of, needed, run, show};
use super::epilogue::ProductEpilogue;
use super::group::{DeferredProduct, DeferredResult, Group};
use super::term::convolution;
use crate::array::Array;
use crate::ops::Op;
use crate::ops::matmul::{self, Linear, MatMul, Tree};
use crate::tape;
use crate::tape::Term;
use crate::tensor::WeakTensor;
use crate::{DType, Error, Layout, Result, Shape, Tensor};
use netcl_device::Buffer;
use netcl_device::deferred::Promise;

/// The computation of a group.
struct Work<'a> {
    group: &'a Group,
    nodes: Nodes,
    /// Results that are still in use, with their buffers.
    kept: Vec<(&'a DeferredResult, Buffer)>,
    roots: Vec<usize>,
    to: Vec<Tensor>,
    /// Indices in the group of the inputs of `nodes`, and the inputs off the tape.
    numbers: Vec<usize>,
    plain: Vec<Tensor>,
    /// Marks the products that are still in use.
    shared: Vec<bool>,
    sources: Vec<String>,
    /// Whether the tree is computed on the host.
    on_host: bool,
}

/// Maximum number of elements of a node that the host computes.
const MAX_HOST_ELEMENTS: usize = 1 << 14;

/// A product whose kernel also computes the ops after it.
struct Host {
    /// Index in the group's products, and index in the inputs of the tree.
    product: usize,
    input: usize,
    /// Indices of the results that it computes. The first is C.
    makes: Vec<usize>,
    /// Whether the product itself is stored.
    stored: bool,
    epilogue: ProductEpilogue,
}

/// Computes the results of a group that are still in use, and records them on the tape. With `explain`, returns tree and kernels as text.
pub(super) fn compute(mut group: Group, explain: bool, host: bool) -> Result<Option<String>> {
    let shown = group.device.settings().debug.iter().any(|word| word == "fuse");
    let (device, layer) = (group.device.clone(), group.layer);
    let (text, results, numbers, unstored, nodes) = {
        let mut work = Work::of(&group);
        work.on_host = host && work.is_small();
        if work.kept.is_empty() && !work.shared.contains(&true) {
            return Ok(None);
        }
        let unstored = device
            .within((layer, "lazy"), || work.run())
            .map_err(|e| e.context(format!("lazy: {}", group.ops.join(", "))))?;
        let text = (explain || shown)
            .then(|| format!("{}\n{}", show::tree(&work.nodes, &work.roots), work.sources.join("\n")));
        (text, work.results(), work.numbers, unstored, work.nodes)
    };
    if let Some(text) = text.as_ref().filter(|_| shown) {
        tracing::info!("{}:\n{text}", group.ops.join(", "));
    }
    // A product that was not stored is recorded on the tape without memory.
    if let Some(input) = unstored {
        group.inputs[input] = group.inputs[input].without_memory()?;
    }
    for product in std::mem::take(&mut group.products) {
        record_product(product)?;
    }
    let Some(later) = group.later.take().filter(|_| !results.is_empty()) else { return Ok(text) };
    let inputs: Vec<&Tensor> = numbers.iter().map(|i| &group.inputs[*i]).collect();
    let back = group.gradients();
    let seen = group.views();
    later.done(&inputs, move |inputs, dys| gradients(nodes, &results, (inputs, dys), (seen, back)))?;
    Ok(text)
}

/// A result on the tape: its index, node and tensor.
type Recorded = (usize, usize, WeakTensor);

/// Converts the gradient of a node to the gradient of its tensor, which has the given shape.
type Back = fn(&Tensor, &Shape) -> Result<Tensor>;

/// Computes the gradients of a group's inputs.
fn gradients(
    nodes: Nodes,
    results: &[Recorded],
    (inputs, dys): (&[Tensor], &[Option<Tensor>]),
    (seen, back): (fn(&Tensor) -> Tensor, Back),
) -> Result<Vec<Option<Tensor>>> {
    let used = results.iter().filter_map(|(slot, root, _)| Some((*root, seen(dys.get(*slot)?.as_ref()?))));
    let (roots, dys): (Vec<usize>, Vec<Tensor>) = used.unzip();
    let dys: Vec<&Tensor> = dys.iter().collect();
    // Results with `retain_grad` also receive gradients from the rest of the tree.
    let asked = results.iter().filter_map(|(_, root, x)| Some((*root, x.upgrade()?)));
    let asked: Vec<(usize, Tensor)> = asked.filter(|(_, x)| x.retains_grad()).collect();
    let nodes_asked: Vec<usize> = asked.iter().map(|(root, _)| *root).collect();
    let (views, needs) = (inputs.iter().map(seen).collect::<Vec<_>>(), needed(inputs));
    let [grads, within] = backward(nodes, (&roots, &dys), (&views, &needs), &nodes_asked)?;
    for ((_, x), grad) in asked.iter().zip(within) {
        if let Some(grad) = grad {
            tape::keep(x, back(&grad.to_dtype(x.dtype())?, x.shape())?)?;
        }
    }
    let all = grads.into_iter().zip(inputs);
    all.map(|(grad, x)| grad.map(|grad| back(&grad, x.shape())).transpose()).collect()
}

fn record_product(product: DeferredProduct) -> Result<()> {
    let DeferredProduct { op, term, of, later: Some(later), .. } = product else { return Ok(()) };
    let inputs: Vec<&Tensor> = of.iter().collect();
    later.done(&inputs, move |inputs, dys| {
        let [Some(dy)] = dys else { return Err(Error::internal(format!("backward of {op}: no gradient"))) };
        match inputs {
            [x, w, bias] if term != Term::Product => {
                Ok(convolution(&term)?.backward([x, w, bias], &(), dy)?.into())
            }
            [x, w] => Ok(MatMul.backward([x, w], &(), dy)?.into()),
            [x, w, bias] => Ok(Linear.backward([x, w, bias], &(), dy)?.into()),
            _ => Err(Error::internal(format!("backward of {op}: {} inputs", inputs.len()))),
        }
    })
}

impl<'a> Work<'a> {
    fn of(group: &'a Group) -> Self {
        // Must run before this function takes additional handles.
        let shared = group.products.iter().map(|product| group.inputs[product.input].is_shared()).collect();
        let kept = group.entries.iter().filter_map(|entry| Some((entry, entry.buffer.upgrade()?)));
        let kept: Vec<(&DeferredResult, Buffer)> = kept.collect();
        let roots: Vec<usize> = kept.iter().map(|(entry, _)| entry.node).collect();
        let (nodes, roots, numbers) = group.nodes.pruned(&roots);
        let plain = numbers.iter().map(|i| group.as_node(&group.inputs[*i])).collect();
        let to = kept.iter().zip(&roots).map(|((entry, buffer), root)| {
            let layout = Layout::contiguous(nodes.shape(*root).clone());
            Tensor::from_parts(buffer.clone(), layout, entry.dtype, None)
        });
        let to = to.collect();
        Self { group, nodes, kept, roots, to, numbers, plain, shared, sources: Vec::new(), on_host: false }
    }

    /// Returns the results that are on the tape.
    fn results(&self) -> Vec<Recorded> {
        let all = self.kept.iter().zip(&self.roots);
        all.filter_map(|((entry, _), root)| Some((entry.slot?, *root, entry.tensor.clone()))).collect()
    }

    /// Computes all results. Returns the index of the input that is a product and was not stored, if there is one.
    fn run(&mut self) -> Result<Option<usize>> {
        let host = self.host()?;
        let mut written: Vec<Buffer> = self.kept.iter().map(|(_, buffer)| buffer.clone()).collect();
        let promised = |written: &[Buffer], promise| written.iter().for_each(|b| b.set_promise(promise));
        for (at, product) in self.group.products.iter().enumerate() {
            let y = &self.group.inputs[product.input];
            let wanted = self.numbers.contains(&product.input) || self.shared[at];
            if wanted && host.as_ref().is_none_or(|host| host.product != at) {
                let written = std::slice::from_ref(y.storage());
                promised(written, Promise::Kept);
                let done = computed(product, &self.group.as_node(y), None);
                promised(written, if done.is_ok() { Promise::None } else { Promise::Open });
                done?;
            }
        }
        let unstored = host.as_ref().filter(|host| !host.stored);
        let unstored = unstored.map(|host| self.group.products[host.product].input);
        if let Some(host) = &host {
            written.push(self.plain[host.input].storage().clone());
        }
        promised(&written, Promise::Kept);
        let done = self.trees(host.as_ref());
        promised(&written, if done.is_ok() { Promise::None } else { Promise::Open });
        done.map(|()| unstored)
    }

    /// Returns whether the host can compute the group: few float elements, and no product.
    fn is_small(&self) -> bool {
        let floats = self.plain.iter().chain(&self.to).all(|x| x.dtype().is_float());
        floats
            && self.group.products.is_empty()
            && self.nodes.all.iter().all(|node| node.shape.count() <= MAX_HOST_ELEMENTS)
    }

    /// Computes all results with the interpreter.
    fn interpreted(&self) -> Result<()> {
        let read = |x: &Tensor| -> Result<Array> {
            let data = x.to_vec()?.into_iter().map(f64::from).collect();
            Ok(Array { shape: x.shape().clone(), data })
        };
        let inputs = self.plain.iter().map(read).collect::<Result<Vec<_>>>()?;
        for (y, to) in self.nodes.interpret(&self.roots, &inputs).iter().zip(&self.to) {
            to.set_f32(&y.data.iter().map(|v| *v as f32).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn trees(&mut self, host: Option<&Host>) -> Result<()> {
        if self.on_host {
            return self.interpreted();
        }
        let mut rest: Vec<usize> = (0..self.roots.len()).collect();
        if let Some(host) = host {
            rest.retain(|i| !host.makes.contains(i));
            self.sources.push(format!("epilogue of {}", self.group.products[host.product].op));
            self.product(host)?;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let roots: Vec<usize> = rest.iter().map(|i| self.roots[*i]).collect();
        let to: Vec<Tensor> = rest.iter().map(|i| self.to[*i].clone()).collect();
        let found = run::run_into(&self.nodes, &self.group.device, (&roots, &to), &self.plain)?;
        self.sources.extend(found);
        Ok(())
    }

    /// Computes a product together with the ops after it.
    fn product(&self, host: &Host) -> Result<()> {
        let roots: Vec<usize> = host.makes.iter().map(|i| self.roots[*i]).collect();
        let to: Vec<Tensor> = host.makes.iter().map(|i| self.to[*i].clone()).collect();
        let product = &self.plain[host.input];
        let apart = || run::run_into(&self.nodes, &self.group.device, (&roots, &to), &self.plain).map(drop);
        let mut outputs = to[1..].to_vec();
        outputs.extend(host.stored.then(|| product.clone()));
        let inputs: Vec<Tensor> = host.epilogue.inputs.iter().map(|i| self.plain[*i].clone()).collect();
        let tree = Tree {
            functions: host.epilogue.functions.clone(),
            parameters: host.epilogue.parameters.clone(),
            arguments: host.epilogue.arguments.clone(),
            inputs: &inputs,
            outputs: &outputs,
            scalars: &host.epilogue.scalars,
            product,
            apart: &apart,
        };
        computed(&self.group.products[host.product], &to[0], Some(&tree))
    }

    /// Returns the last product whose kernel can include the ops after it.
    fn host(&self) -> Result<Option<Host>> {
        for (at, product) in self.group.products.iter().enumerate().rev() {
            let Some(input) = self.numbers.iter().position(|i| *i == product.input) else { continue };
            let uses = |root: usize| {
                self.nodes
                    .cone(&[root], |_| false)
                    .iter()
                    .any(|id| self.nodes.kind(*id) == NodeKind::Input(input))
            };
            let mut makes: Vec<usize> = (0..self.roots.len()).filter(|i| uses(self.roots[*i])).collect();
            let dtype = self.plain[input].dtype();
            // C has the product's type.
            let Some(first) = makes.iter().position(|i| self.to[*i].dtype() == dtype) else { continue };
            makes.swap(0, first);
            let stored = self.shared[at] || self.backward_reads(input)?;
            let mut roots: Vec<(usize, DType)> =
                makes.iter().map(|i| (self.roots[*i], self.to[*i].dtype())).collect();
            if stored {
                let own = self.nodes.all.iter().position(|node| node.kind == NodeKind::Input(input));
                roots.extend(own.map(|id| (id, dtype)));
            }
            if self.plain[input].count() > 0
                && let Some(epilogue) = ProductEpilogue::of(&self.nodes, &roots, input, &self.plain)
            {
                return Ok(Some(Host { product: at, input, makes, stored, epilogue }));
            }
        }
        Ok(None)
    }

    /// Returns whether the backward reads the values of an input.
    fn backward_reads(&self, input: usize) -> Result<bool> {
        let kept = self.kept.iter().zip(&self.roots).zip(&self.to);
        let on_tape: Vec<(usize, &Tensor)> =
            kept.filter(|((kept, _), _)| kept.0.slot.is_some()).map(|((_, root), y)| (*root, y)).collect();
        if on_tape.is_empty() {
            return Ok(false);
        }
        let (mut nodes, mut all) = (self.nodes.clone(), self.plain.clone());
        all.extend(on_tape.iter().map(|(_, y)| (*y).clone()));
        let roots: Vec<usize> = on_tape.iter().map(|(root, _)| *root).collect();
        let needs = |i: usize| self.group.inputs[self.numbers[i]].requires_grad();
        let (found, ..) = gradients_of(&mut nodes, &roots, &all, needs)?;
        Ok(nodes.cone(&found, |_| false).iter().any(|id| nodes.kind(*id) == NodeKind::Input(input)))
    }
}

/// Computes a product in the layout of its node.
fn computed(product: &DeferredProduct, y: &Tensor, tree: Option<&Tree<'_>>) -> Result<()> {
    match (&product.term, product.of.as_slice()) {
        (Term::Product, [x, w, bias @ ..]) => matmul::linear_into(y, (x, w, bias.first()), tree),
        (term, [x, w, bias]) => convolution(term)?.computed(y, [x, w, bias], tree),
        _ => Err(Error::internal("lazy: a product has too few inputs")),
    }
}
