//! What a graph of operations says, as data: its inputs, weights, operations and results, and what may be wrong with them.

use crate::ops::call::Value;
use crate::ops::find;
use crate::{DType, Error, Result};

/// A size or an integer that is fixed, or grows with the rows that a graph is run with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The same for any number of rows.
    Fixed(i64),
    /// So many for each row.
    Rows(i64),
}

impl Size {
    /// The integer for so many rows.
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
pub struct Form {
    /// Sizes of its axes.
    pub sizes: Vec<Size>,
    /// How it is stored.
    pub dtype: DType,
}

impl Form {
    /// The shape for so many rows.
    ///
    /// # Errors
    /// `Format` where a size is negative, or there are more elements than can be counted.
    pub fn dims(&self, rows: usize) -> Result<Vec<usize>> {
        let dims: Option<Vec<usize>> =
            self.sizes.iter().map(|size| usize::try_from(size.at(rows)?).ok()).collect();
        let bytes = |dims: &Vec<usize>| {
            let all = dims.iter().try_fold(self.dtype.size(), |n, size| n.checked_mul((*size).max(1)));
            all.is_some_and(|bytes| bytes <= isize::MAX.cast_unsigned())
        };
        dims.filter(bytes).ok_or_else(|| Error::format(format!("{self} is no shape that can be in memory")))
    }
    /// Whether its first axis grows with the rows, and no other does.
    pub fn rows_first(&self) -> bool {
        let (first, behind) = self.sizes.split_first().unzip();
        matches!(first, Some(Size::Rows(_)))
            && behind.is_some_and(|sizes: &[Size]| sizes.iter().all(|s| matches!(s, Size::Fixed(_))))
    }
    /// Whether any axis grows with the rows.
    pub fn has_rows(&self) -> bool {
        self.sizes.iter().any(|s| matches!(s, Size::Rows(_)))
    }
    /// The same for a shape that is what it is.
    pub fn fixed(dims: &[usize], dtype: DType) -> Self {
        let size = |n: &usize| Size::Fixed(i64::try_from(*n).unwrap_or(i64::MAX));
        Self { sizes: dims.iter().map(size).collect(), dtype }
    }
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(Size::to_string).collect();
        write!(f, "{} [{}]", self.dtype, sizes.join(", "))
    }
}

/// A tensor that a graph is run with.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Name.
    pub name: String,
    /// Shape and type.
    pub form: Form,
}

/// A tensor that a graph has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightInfo {
    /// Name: the parameter's, or `constant.<number>`.
    pub name: String,
    /// Shape.
    pub dims: Vec<usize>,
    /// How it is stored.
    pub dtype: DType,
    /// BLAKE3 of its bytes as hexadecimal digits, in a file.
    pub hash: String,
}

/// What an operation is given beside tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// The same for any number of rows.
    Plain(Value),
    /// An integer that grows with them.
    Rows(i64),
    /// Integers, some of which do.
    Sizes(Vec<Size>),
}

impl Setting {
    /// The value for so many rows.
    ///
    /// # Errors
    /// `Format` where it is larger than an integer can be.
    pub fn at(&self, rows: usize) -> Result<Value> {
        let large = || Error::format("an attribute is larger than an integer can be");
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
pub struct Made {
    /// Which of the call's results.
    pub of: usize,
    /// Shape and type.
    pub form: Form,
}

/// A launch that an operation made where the graph was recorded. Another device chooses its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// Name of the text: the variant.
    pub variant: String,
    /// Name of its function.
    pub name: String,
    /// Its defines, `NAME=value` with a space between.
    pub defines: String,
    /// Work-items in each dimension.
    pub global: [usize; 3],
    /// Work-items of a group.
    pub local: [usize; 3],
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name that it is called by.
    pub op: String,
    /// The layer it belongs to, or nothing.
    pub layer: String,
    /// Numbers of the values that it is given; `None` for an input that is left out.
    pub inputs: Vec<Option<usize>>,
    /// What else it is given.
    pub attributes: Vec<(String, Setting)>,
    /// What comes of it.
    pub results: Vec<Made>,
    /// Its kernels where it was recorded.
    pub kernels: Vec<KernelUse>,
}

/// A graph of operations. Values are numbered: inputs, then weights, then the results of one operation after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Whether it can be run with any number of rows.
    pub any_rows: bool,
    /// Rows it was recorded with; of no meaning where all sizes are fixed.
    pub rows: usize,
    /// The device it was recorded on.
    pub device: String,
    /// What it is run with.
    pub inputs: Vec<Input>,
    /// What it has.
    pub weights: Vec<WeightInfo>,
    /// What is done, in order.
    pub nodes: Vec<Node>,
    /// Which values come out.
    pub outputs: Vec<usize>,
}

impl Spec {
    /// The number of the first value that operations make.
    pub fn first_made(&self) -> usize {
        self.inputs.len() + self.weights.len()
    }
    /// Shape and type of every value.
    pub fn forms(&self) -> Vec<Form> {
        let inputs = self.inputs.iter().map(|input| input.form.clone());
        let weights = self.weights.iter().map(|w| Form::fixed(&w.dims, w.dtype));
        let made = self.nodes.iter().flat_map(|node| node.results.iter().map(|made| made.form.clone()));
        inputs.chain(weights).chain(made).collect()
    }
    /// What an operation is called in messages: its number, its name and its layer.
    pub fn called(&self, node: usize) -> String {
        let (op, layer) = self.nodes.get(node).map_or(("", ""), |n| (n.op.as_str(), n.layer.as_str()));
        match layer {
            "" => format!("operation {node} ({op})"),
            layer => format!("operation {node} ({op} of {layer})"),
        }
    }
    /// The operation that uses each value last; of those that come out, and of those that none uses, the number of operations.
    pub fn last_uses(&self) -> Vec<usize> {
        let count = self.nodes.len();
        let mut last = vec![count; self.forms().len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().flatten().for_each(|id| last[*id] = at);
        }
        self.outputs.iter().for_each(|id| last[*id] = count);
        last
    }

    /// Whether everything that is named is there and comes before it is used.
    ///
    /// # Errors
    /// `Format` with the place of what is wrong.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::format(what));
        let mut known = self.first_made();
        for (i, input) in self.inputs.iter().enumerate() {
            let sizes = &input.form.sizes;
            if sizes.iter().any(|s| s.at(1).is_none_or(|n| n < 0))
                || self.any_rows && !input.form.rows_first()
                || !self.any_rows && input.form.has_rows()
            {
                return wrong(format!("inputs[{i}]: {} is no shape of an input", input.form));
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            let called = self.called(at);
            let call = find(&node.op).map_err(|e| e.context(format!("nodes[{at}]")))?;
            if let Some(id) = node.inputs.iter().flatten().find(|id| **id >= known) {
                return wrong(format!("{called}: it is given value {id}, and there are {known} before it"));
            }
            if node.results.is_empty() {
                return wrong(format!("{called}: it has no result"));
            }
            let mut names: Vec<&str> = node.attributes.iter().map(|(name, _)| name.as_str()).collect();
            names.sort_unstable();
            if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                return wrong(format!("{called}: attribute {} is given twice", twice[0]));
            }
            let most = if call.many { usize::MAX } else { call.results.len() };
            if let Some(made) = node.results.iter().find(|made| made.of >= most) {
                return wrong(format!("{called}: result {} of {most}", made.of));
            }
            if !self.any_rows && node.results.iter().any(|made| made.form.has_rows()) {
                return wrong(format!("{called}: a result grows with rows that the inputs have not"));
            }
            known += node.results.len();
        }
        match self.outputs.iter().find(|id| **id >= known) {
            Some(id) => wrong(format!("outputs: value {id} of {known}")),
            None if self.outputs.is_empty() => wrong("outputs: there are none".into()),
            None => Ok(()),
        }
    }
}
