//! The description of a graph of operations as data: inputs, weights, operations and results, and checks of them.

use crate::ops::call::Value;
use crate::ops::find;
use crate::{DType, Error, Result};

/// A size or integer that is fixed, or proportional to the number of rows of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The same for any number of rows.
    Fixed(i64),
    /// This many per row.
    Rows(i64),
}

impl Size {
    /// Returns the integer for a number of rows.
    pub fn at(self, rows: usize) -> Option<i64> {
        match self {
            Self::Fixed(n) => Some(n),
            Self::Rows(k) => i64::try_from(rows).ok()?.checked_mul(k),
        }
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(n) => write!(f, "{n}"),
            Self::Rows(1) => f.write_str("rows"),
            Self::Rows(k) => write!(f, "{k}·rows"),
        }
    }
}

/// Shape and type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueType {
    /// Sizes of its axes.
    pub sizes: Vec<Size>,
    /// Storage type.
    pub dtype: DType,
}

impl ValueType {
    /// Returns the shape for a number of rows.
    ///
    /// # Errors
    /// `Format` if a size is negative, or there are more elements than can be counted.
    pub fn dims(&self, rows: usize) -> Result<Vec<usize>> {
        let dims: Option<Vec<usize>> =
            self.sizes.iter().map(|size| usize::try_from(size.at(rows)?).ok()).collect();
        let bytes = |dims: &Vec<usize>| {
            let all = dims.iter().try_fold(self.dtype.size(), |n, size| n.checked_mul((*size).max(1)));
            all.is_some_and(|bytes| bytes <= isize::MAX.cast_unsigned())
        };
        dims.filter(bytes).ok_or_else(|| Error::format(format!("{self} is not a valid shape")))
    }
    /// Returns whether the first axis, and no other axis, grows with the rows.
    pub fn rows_first(&self) -> bool {
        let (first, behind) = self.sizes.split_first().unzip();
        matches!(first, Some(Size::Rows(_)))
            && behind.is_some_and(|sizes: &[Size]| sizes.iter().all(|s| matches!(s, Size::Fixed(_))))
    }
    /// Returns whether any axis grows with the rows.
    pub fn has_rows(&self) -> bool {
        self.sizes.iter().any(|s| matches!(s, Size::Rows(_)))
    }
    /// Returns the form of a fixed shape.
    pub fn fixed(dims: &[usize], dtype: DType) -> Self {
        let size = |n: &usize| Size::Fixed(i64::try_from(*n).unwrap_or(i64::MAX));
        Self { sizes: dims.iter().map(size).collect(), dtype }
    }
}

impl std::fmt::Display for ValueType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(Size::to_string).collect();
        write!(f, "{} [{}]", self.dtype, sizes.join(", "))
    }
}

/// An input of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphInput {
    /// Name.
    pub name: String,
    /// Shape and type.
    pub form: ValueType,
}

/// A weight of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Name: the parameter's, or `constant.<number>`.
    pub name: String,
    /// Shape.
    pub dims: Vec<usize>,
    /// Storage type.
    pub dtype: DType,
    /// BLAKE3 of its bytes in hexadecimal, if it comes from a file.
    pub hash: String,
}

/// Attribute value of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// The same for any number of rows.
    Plain(Value),
    /// An integer that is proportional to the number of rows.
    Rows(i64),
    /// Integers, some of which are proportional to the number of rows.
    Sizes(Vec<Size>),
}

impl Setting {
    /// Returns the value for a number of rows.
    ///
    /// # Errors
    /// `Format` if it exceeds the range of an integer.
    pub fn at(&self, rows: usize) -> Result<Value> {
        let large = || Error::format("an attribute exceeds the range of an integer");
        Ok(match self {
            Self::Plain(value) => value.clone(),
            Self::Rows(k) => Value::Int(Size::Rows(*k).at(rows).ok_or_else(large)?),
            Self::Sizes(sizes) => {
                Value::Ints(sizes.iter().map(|s| s.at(rows)).collect::<Option<_>>().ok_or_else(large)?)
            }
        })
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(value) => f.write_str(&value.shown()),
            Self::Rows(k) => Size::Rows(*k).fmt(f),
            Self::Sizes(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(Size::to_string).collect();
                write!(f, "[{}]", sizes.join(", "))
            }
        }
    }
}

/// A result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeResult {
    /// Index among the call's results.
    pub of: usize,
    /// Shape and type.
    pub form: ValueType,
}

/// A launch of an operation on the device where the graph was recorded. Other devices choose their own kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// Name of the source: the variant.
    pub variant: String,
    /// Name of its function.
    pub name: String,
    /// Its defines, `NAME=value`, separated by spaces.
    pub defines: String,
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items of a group in each dimension.
    pub local: [usize; 3],
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphNode {
    /// Name of the operation.
    pub op: String,
    /// Its layer, or an empty string.
    pub layer: String,
    /// Numbers of its input values; `None` for an omitted input.
    pub inputs: Vec<Option<usize>>,
    /// Its attributes.
    pub attributes: Vec<(String, Setting)>,
    /// Its results.
    pub results: Vec<NodeResult>,
    /// Its kernels on the device where it was recorded.
    pub kernels: Vec<KernelUse>,
}

/// A graph of operations. Values are numbered: inputs, weights, then the results of all operations in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Whether it can be run with any number of rows.
    pub any_rows: bool,
    /// Rows with which it was recorded; meaningless if all sizes are fixed.
    pub rows: usize,
    /// Device on which it was recorded.
    pub device: String,
    /// Its inputs.
    pub inputs: Vec<GraphInput>,
    /// Its weights.
    pub weights: Vec<WeightInfo>,
    /// Its operations, in order.
    pub nodes: Vec<GraphNode>,
    /// Numbers of the result values.
    pub outputs: Vec<usize>,
}

impl Spec {
    /// Returns the number of the first value that an operation computes.
    pub fn first_made(&self) -> usize {
        self.inputs.len() + self.weights.len()
    }
    /// Returns shape and type of every value.
    pub fn forms(&self) -> Vec<ValueType> {
        let inputs = self.inputs.iter().map(|input| input.form.clone());
        let weights = self.weights.iter().map(|w| ValueType::fixed(&w.dims, w.dtype));
        let made = self.nodes.iter().flat_map(|node| node.results.iter().map(|made| made.form.clone()));
        inputs.chain(weights).chain(made).collect()
    }
    /// Names an operation in messages: its number, name and layer.
    pub fn called(&self, node: usize) -> String {
        let (op, layer) = self.nodes.get(node).map_or(("", ""), |n| (n.op.as_str(), n.layer.as_str()));
        match layer {
            "" => format!("operation {node} ({op})"),
            layer => format!("operation {node} ({op} of {layer})"),
        }
    }
    /// Returns the operation that uses each value last. For results, and for unused values, this is the number of operations.
    pub fn last_uses(&self) -> Vec<usize> {
        let count = self.nodes.len();
        let mut last = vec![count; self.forms().len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().flatten().for_each(|id| last[*id] = at);
        }
        self.outputs.iter().for_each(|id| last[*id] = count);
        last
    }

    /// Checks that everything that is referenced exists and precedes its use.
    ///
    /// # Errors
    /// `Format` with the position of the error.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::format(what));
        let mut known = self.first_made();
        for (i, input) in self.inputs.iter().enumerate() {
            let sizes = &input.form.sizes;
            if sizes.iter().any(|s| s.at(1).is_none_or(|n| n < 0))
                || self.any_rows && !input.form.rows_first()
                || !self.any_rows && input.form.has_rows()
            {
                return wrong(format!("inputs[{i}]: {} is not a valid shape of an input", input.form));
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let called = self.called(at);
            let call = find(&node.op).map_err(|e| e.context(format!("nodes[{at}]")))?;
            if let Some(id) = node.inputs.iter().flatten().find(|id| **id >= known) {
                return wrong(format!("{called}: its input is value {id}, but only {known} precede it"));
            }
            if node.results.is_empty() {
                return wrong(format!("{called}: it needs at least one result"));
            }
            let mut names: Vec<&str> = node.attributes.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return wrong(format!("{called}: attribute {} is given twice", twice[0]));
            }
            let most = if call.many { usize::MAX } else { call.results.len() };
            if let Some(made) = node.results.iter().find(|made| made.of >= most) {
                return wrong(format!(
                    "{called}: result {} is out of range, expected at most {most} results",
                    made.of
                ));
            }
            if !self.any_rows && node.results.iter().any(|made| made.form.has_rows()) {
                return wrong(format!(
                    "{called}: a result grows with rows, but the inputs have a fixed number of rows"
                ));
            }
            known += node.results.len();
        }
        match self.outputs.iter().find(|id| **id >= known) {
            Some(id) => wrong(format!("outputs: value {id} is out of range; there are {known}")),
            None if self.outputs.is_empty() => wrong("outputs: expected at least one".into()),
            None => Ok(()),
        }
    }
}
