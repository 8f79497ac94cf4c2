//! Sums of products by a formula of labeled axes (Einstein's convention), composed of products, permutations and sums.

use super::matmul::matmul;
use super::prelude::*;
use super::rearrange::index_select;
use std::collections::BTreeMap;

/// An axis: a letter, or, from [`ELLIPSIS`] on, one of the axes that `...` stands for, counted from the last.
type Label = u32;
const ELLIPSIS: Label = 0x11_0000;

/// Multiplies tensors along axes with the same letter, and sums over letters that are not in the result: `"bij,bjk->bik"` is a matrix product.
/// Without `->` the result has the letters that occur once, in their order. `...` stands for any axes, which broadcast; so do axes of size 1. A
/// letter twice in one tensor selects its diagonal. Tensors are multiplied from left to right.
///
/// # Errors
/// `Format` for an invalid formula; `Shape` if it does not fit the tensors; `DType` if they are not floats of one type.
pub fn einsum(formula: &str, tensors: &[&Tensor]) -> Result<Tensor> {
    let names: Vec<String> = (0..tensors.len()).map(|i| format!("tensor {i}")).collect();
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(tensors.iter().copied()).collect();
    check::same_float("einsum", &named)?;
    check::one_device("einsum", tensors)?;
    let plan = Formula::read(formula, tensors)?;
    let mut operands = Vec::with_capacity(tensors.len());
    for (tensor, labels) in tensors.iter().zip(&plan.inputs) {
        let operand = Operand { tensor: (*tensor).clone(), labels: labels.clone() };
        operands.push(operand.diagonals()?.without_repeated(&plan.sizes)?);
    }
    let mut rest = operands.into_iter();
    let Some(mut product) = rest.next() else {
        return Err(Error::shape("einsum: no tensors, expected at least one"));
    };
    while let Some(next) = rest.next() {
        let wanted = |label: &Label| {
            plan.output.contains(label) || rest.as_slice().iter().any(|o| o.labels.contains(label))
        };
        product = product.times(next, &wanted)?;
    }
    let product = product.summed(&|label| plan.output.contains(label))?;
    product.ordered(&plan.output).map(|(y, _)| y)
}

/// A formula applied to given tensors.
struct Formula {
    inputs: Vec<Vec<Label>>,
    output: Vec<Label>,
    sizes: BTreeMap<Label, usize>,
}

impl Formula {
    fn read(formula: &str, tensors: &[&Tensor]) -> Result<Self> {
        let text: String = formula.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != tensors.len() {
            return Err(Error::shape(format!(
                "einsum: {formula:?} is for {}, expected {}",
                counted(terms.len(), "tensor"),
                tensors.len()
            )));
        }
        let mut inputs = Vec::new();
        let mut sizes = BTreeMap::new();
        let mut widest = 0;
        for (i, (term, tensor)) in terms.iter().zip(tensors).enumerate() {
            let letters = term.chars().filter(char::is_ascii_alphabetic).count();
            let spare = tensor.shape().rank().checked_sub(letters);
            let wrong = || {
                Error::shape(format!(
                    "einsum: {term:?} of {formula:?} does not have the axes of tensor {i} {}",
                    tensor.shape()
                ))
            };
            let (labels, dots) = labelled(formula, term, spare.ok_or_else(wrong)?)?;
            if labels.len() != tensor.shape().rank() {
                return Err(wrong());
            }
            widest = widest.max(dots);
            for (label, size) in labels.iter().zip(tensor.dims()) {
                let known = sizes.entry(*label).or_insert(*size);
                if *known == 1 {
                    *known = *size;
                }
                if *size != *known && *size != 1 {
                    return Err(Error::shape(format!(
                        "einsum: an axis of tensor {i} {} has {size} elements, expected {known} as in another tensor, by {formula:?}",
                        tensor.shape()
                    )));
                }
            }
            inputs.push(labels);
        }
        let output = match right {
            Some(right) => labelled(formula, right, widest)?.0,
            None => implied(&inputs, widest),
        };
        let twice = output.iter().enumerate().find(|(i, label)| output[..*i].contains(label));
        let unknown = output.iter().find(|label| !sizes.contains_key(label));
        if twice.is_some() || unknown.is_some() {
            return Err(Error::format(format!(
                "einsum: the result of {formula:?} has an axis twice or one that no tensor has"
            )));
        }
        Ok(Self { inputs, output, sizes })
    }
}

/// Returns the labels of a term whose `...` stands for `spare` axes, and the number of axes that it stood for.
fn labelled(formula: &str, term: &str, spare: usize) -> Result<(Vec<Label>, usize)> {
    let letters = |part: &str| {
        part.chars()
            .map(|c| if c.is_ascii_alphabetic() { Some(u32::from(c)) } else { None })
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| {
                Error::format(format!(
                    "einsum: {part:?} of {formula:?}, expected letters, and `...` at most once"
                ))
            })
    };
    let Some((front, back)) = term.split_once("...") else { return Ok((letters(term)?, 0)) };
    let dots = (0..spare as Label).rev().map(|i| ELLIPSIS + i);
    Ok((letters(front)?.into_iter().chain(dots).chain(letters(back)?).collect(), spare))
}

/// Returns the result's axes if the formula does not name them: those of `...`, and letters that occur once.
fn implied(inputs: &[Vec<Label>], widest: usize) -> Vec<Label> {
    let mut counts = BTreeMap::new();
    inputs.iter().flatten().for_each(|label| *counts.entry(*label).or_insert(0) += 1);
    let once = counts.into_iter().filter(|(label, n)| *label < ELLIPSIS && *n == 1).map(|(label, _)| label);
    (0..widest as Label).rev().map(|i| ELLIPSIS + i).chain(once).collect()
}

/// A tensor with a label for each axis.
struct Operand {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl Operand {
    /// Returns the axes in this order, and their sizes.
    fn ordered(&self, labels: &[Label]) -> Result<(Tensor, Vec<usize>)> {
        let axes: Vec<usize> =
            labels.iter().filter_map(|label| self.labels.iter().position(|l| l == label)).collect();
        let tensor = self.tensor.permute(&axes)?;
        let dims = tensor.dims().to_vec();
        Ok((tensor, dims))
    }

    /// Selects diagonals, so that no label occurs twice.
    fn diagonals(mut self) -> Result<Self> {
        loop {
            let pairs = (0..self.labels.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
            let Some((a, b)) = pairs.into_iter().find(|(a, b)| self.labels[*a] == self.labels[*b]) else {
                return Ok(self);
            };
            let [n, m] = [self.tensor.dims()[a], self.tensor.dims()[b]];
            let others: Vec<usize> = (0..self.labels.len()).filter(|d| *d != a && *d != b).collect();
            let order: Vec<usize> = others.iter().copied().chain([a, b]).collect();
            let mut dims: Vec<usize> = others.iter().map(|d| self.tensor.dims()[*d]).collect();
            dims.push(n * m);
            // An axis of size 1 is repeated along the other one.
            let step = |size: usize, stride: usize| if size == 1 { 0 } else { stride };
            let ids = (0..n.max(m)).map(|i| i * (step(n, m) + step(m, 1)));
            let ids: Vec<u32> = ids.map(|i| u32::try_from(i).unwrap_or(u32::MAX)).collect();
            let ids = Tensor::from_u32(self.tensor.device(), [ids.len()], &ids)?;
            let label = self.labels[a];
            self.tensor = index_select(&self.tensor.permute(&order)?.reshape(dims)?, -1, &ids)?;
            self.labels = others.iter().map(|d| self.labels[*d]).chain([label]).collect();
        }
    }

    /// Removes axes of size 1 whose label has more elements elsewhere.
    fn without_repeated(self, sizes: &BTreeMap<Label, usize>) -> Result<Self> {
        let kept = |d: &usize| self.tensor.dims()[*d] != 1 || sizes.get(&self.labels[*d]) == Some(&1);
        let kept: Vec<usize> = (0..self.labels.len()).filter(kept).collect();
        let dims: Vec<usize> = kept.iter().map(|d| self.tensor.dims()[*d]).collect();
        let labels = kept.iter().map(|d| self.labels[*d]).collect();
        Ok(Self { tensor: self.tensor.reshape(dims)?, labels })
    }

    /// Sums over unwanted axes.
    fn summed(self, wanted: &dyn Fn(&Label) -> bool) -> Result<Self> {
        let axes: Vec<isize> =
            (0..self.labels.len()).filter(|d| !wanted(&self.labels[*d])).map(usize::cast_signed).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.into_iter().filter(wanted).collect();
        Ok(Self { tensor: self.tensor.sum(&axes, false)?, labels })
    }

    /// Multiplies both, and sums over axes that are not part of the result.
    fn times(self, other: Self, wanted: &dyn Fn(&Label) -> bool) -> Result<Self> {
        let (a_has, b_has) = (self.labels.clone(), other.labels.clone());
        let a = self.summed(&|label| wanted(label) || b_has.contains(label))?;
        let b = other.summed(&|label| wanted(label) || a_has.contains(label))?;
        let of = |labels: &[Label], keep: &dyn Fn(&Label) -> bool| -> Vec<Label> {
            labels.iter().copied().filter(|label| keep(label)).collect()
        };
        let batch = of(&a.labels, &|label| b_has.contains(label) && wanted(label));
        let inner = of(&a.labels, &|label| b_has.contains(label) && !wanted(label));
        let rows = of(&a.labels, &|label| !b_has.contains(label));
        let columns = of(&b.labels, &|label| !a_has.contains(label));
        let (left, left_dims) = a.ordered(&[&batch[..], &rows, &inner].concat())?;
        let (right, right_dims) = b.ordered(&[&batch[..], &inner, &columns].concat())?;
        let (batches, row_dims) = left_dims.split_at(batch.len());
        let row_dims = &row_dims[..rows.len()];
        let column_dims = &right_dims[batch.len() + inner.len()..];
        let size = |dims: &[usize]| dims.iter().product::<usize>();
        let labels = [&batch[..], &rows, &columns].concat();
        let dims = [batches, row_dims, column_dims].concat();
        let shape = |m: usize, n: usize| [batches, &[m, n]].concat();
        let (m, n) = (size(row_dims), size(column_dims));
        let k = size(&left_dims[batch.len() + rows.len()..]);
        let (left, right) = (left.reshape(shape(m, k))?, right.reshape(shape(k, n))?);
        // Without a sum this is an element-wise product with broadcasting.
        let product = if inner.is_empty() { left.mul(&right)? } else { matmul(&left, &right)? };
        Ok(Self { tensor: product.reshape(dims)?, labels })
    }
}

/// Returns the call of this function.
pub(super) fn calls() -> Vec<Call> {
    let doc = "Multiplies tensors along axes with the same letter, and sums over letters that are not in the result: `bij,bjk->bik` is a matrix \
               product. `...` stands for any axes, which broadcast; a letter twice in one tensor selects its diagonal.";
    let call = Call::new("einsum", doc).list("tensors").required("formula", AttributeKind::Text);
    vec![call.run(|a| einsum(&a.get::<String>("formula")?, &a.list()))]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the formula by its definition: a loop over every letter.
    fn expected(inputs: &[(&str, Array)], output: &str) -> Array {
        let mut sizes = BTreeMap::new();
        for (labels, array) in inputs {
            for (label, size) in labels.chars().zip(array.shape.dims()) {
                let known = sizes.entry(label).or_insert(1);
                *known = (*known).max(*size);
            }
        }
        let labels: Vec<char> = sizes.keys().copied().collect();
        let all = Shape::from(sizes.values().copied().collect::<Vec<_>>());
        let mut y = Array::zeros(output.chars().map(|c| sizes[&c]).collect::<Vec<_>>());
        let strides = y.shape.strides();
        for e in 0..all.count() {
            let at = unravel(e, &all);
            let of = |c: char| at[labels.iter().position(|l| *l == c).unwrap()];
            let place = |names: &str, dims: &[usize], strides: &[usize]| -> usize {
                names
                    .chars()
                    .zip(dims)
                    .zip(strides)
                    .map(|((c, n), s)| if *n == 1 { 0 } else { of(c) * s })
                    .sum()
            };
            let product: f64 =
                inputs.iter().map(|(l, a)| a.data[place(l, a.shape.dims(), &a.shape.strides())]).product();
            let to = output.chars().zip(&strides).map(|(c, s)| of(c) * s).sum::<usize>();
            y.data[to] += product;
        }
        y
    }

    /// Tests values, and the gradient of the first tensor by central differences.
    #[test]
    fn formulas_are_their_definition() {
        let device = crate::suite::test_device().unwrap();
        // The formula as given, the same with letters only, shapes.
        let cases: [(&str, &str, &[&[usize]]); 13] = [
            ("ij,jk->ik", "ij,jk->ik", &[&[3, 4], &[4, 5]]),
            ("bij,bjk", "bij,bjk->ik", &[&[2, 3, 4], &[2, 4, 5]]),
            ("bij , bjk -> bki", "bij,bjk->bki", &[&[2, 3, 4], &[2, 4, 5]]),
            ("bhqd,bhkd->bhqk", "bhqd,bhkd->bhqk", &[&[2, 2, 3, 4], &[2, 2, 5, 4]]),
            ("i,j->ij", "i,j->ij", &[&[3], &[4]]),
            ("ij->", "ij->", &[&[3, 4]]),
            ("ba", "ba->ab", &[&[3, 4]]),
            ("ii->i", "ii->i", &[&[4, 4]]),
            ("iji->j", "iji->j", &[&[3, 2, 3]]),
            ("...ij,...jk->...ik", "xyij,yjk->xyik", &[&[2, 3, 2, 4], &[3, 4, 2]]),
            ("...a,a->...", "xya,a->xy", &[&[2, 3, 4], &[4]]),
            ("ij,ij,jk->k", "ij,ij,jk->k", &[&[3, 4], &[1, 4], &[4, 2]]),
            ("ik,jk,kl->ijl", "ik,jk,kl->ijl", &[&[2, 3], &[4, 3], &[3, 2]]),
        ];
        for (formula, plain, shapes) in cases {
            let (terms, output) = plain.split_once("->").unwrap();
            // "bij,bjk" sums over b too: letters that occur twice are not in the result.
            let draw = |i: usize| SampleInput::normal(shapes[i]).draw(i as u64, DType::F32);
            let hosts: Vec<Array> = (0..shapes.len()).map(draw).collect();
            let named = |hosts: &[Array]| -> Vec<(&str, Array)> {
                terms.split(',').zip(hosts.iter().cloned()).collect()
            };
            let placed = |a: &Array| {
                let data: Vec<f32> = a.data.iter().map(|v| *v as f32).collect();
                Tensor::from_f32(&device, a.shape.clone(), &data, DType::F32).unwrap()
            };
            let tensors: Vec<Tensor> = hosts.iter().map(|a| placed(a).parameter("x")).collect();
            let y = einsum(formula, &tensors.iter().collect::<Vec<_>>()).unwrap();
            let wanted = expected(&named(&hosts), output);
            assert_eq!(y.dims(), wanted.shape.dims(), "{formula}");
            for (got, wanted) in y.to_vec().unwrap().iter().zip(&wanted.data) {
                assert!((f64::from(*got) - wanted).abs() < 2e-5, "{formula}: {got}, expected {wanted}");
            }
            y.square().unwrap().sum(&[], false).unwrap().backward().unwrap();
            let grad = tensors[0].grad().unwrap().to_vec().unwrap();
            let loss =
                |hosts: &[Array]| expected(&named(hosts), output).data.iter().map(|v| v * v).sum::<f64>();
            for (i, got) in grad.iter().enumerate() {
                let moved = |h: f64| {
                    let mut hosts = hosts.clone();
                    hosts[0].data[i] += h;
                    loss(&hosts)
                };
                let slope = (moved(1e-4) - moved(-1e-4)) / 2e-4;
                assert!(
                    (f64::from(*got) - slope).abs() < 1e-3 * (1.0 + slope.abs()),
                    "{formula}: {got}, expected {slope}"
                );
            }
        }
    }

    #[test]
    fn what_is_wrong_with_a_formula_is_said() {
        let device = crate::suite::test_device().unwrap();
        let x = Tensor::zeros(&device, [2, 3], DType::F32).unwrap();
        for (formula, tensors, expected) in [
            ("ij,jk->ik", &[&x][..], "einsum: \"ij,jk->ik\" is for 2 tensors, expected 1"),
            ("ijk->i", &[&x], "einsum: \"ijk\" of \"ijk->i\" does not have the axes of tensor 0 [2, 3]"),
            ("i->i", &[&x], "einsum: \"i\" of \"i->i\" does not have the axes of tensor 0 [2, 3]"),
            ("ij,jk->ik", &[&x, &x], "einsum: an axis of tensor 1 [2, 3] has 2 elements, expected 3"),
            ("ij->ik", &[&x], "einsum: the result of \"ij->ik\" has an axis twice or one that no tensor has"),
            ("ij->ii", &[&x], "einsum: the result of \"ij->ii\" has an axis twice or one that no tensor has"),
            ("i1->i", &[&x], "einsum: \"i1\" of \"i1->i\", expected letters, and `...` at most once"),
        ] {
            let message = einsum(formula, tensors).unwrap_err().message().to_owned();
            assert!(message.starts_with(expected), "{message}, expected {expected}");
        }
    }
}
