//! Ops by name: what a call takes and gives, for callers that have no types of Rust's: Python, C, files.
//!
//! A [`Call`] is written in its op's file, beside the function that it calls; [`calls`](super::calls) has all of them.

mod value;

use crate::{Error, Result, Tensor};
use netcl_device::did_you_mean;
pub use value::{FromValue, Kind, Value};

/// How many tensors an input takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// One.
    One,
    /// One or none.
    Optional,
    /// All that are left, at least one. Such an input is the last.
    List,
}

/// A tensor that a call takes.
#[derive(Clone, Copy, Debug)]
pub struct CallInput {
    /// Name, as the op's errors say it.
    pub name: &'static str,
    /// How many it stands for.
    pub arity: Arity,
}

/// What a call takes beside tensors.
#[derive(Clone, Debug)]
pub struct Attribute {
    /// Name.
    pub name: &'static str,
    /// What values it has.
    pub kind: Kind,
    /// What it is where it is not given; none where it has to be.
    pub default: Option<Value>,
    /// Whether it can be without a value.
    pub optional: bool,
}

/// Names and values of attributes.
pub type Attributes = Vec<(&'static str, Value)>;

#[derive(Clone, Copy)]
enum Run {
    One(fn(&Args<'_>) -> Result<Tensor>),
    All(fn(&Args<'_>) -> Result<Vec<Tensor>>),
}

/// A function that can be called by name.
#[derive(Clone)]
pub struct Call {
    /// Name, the Rust function's.
    pub name: &'static str,
    /// One paragraph: formula, shapes, types, what is special.
    pub doc: &'static str,
    /// Tensors that it takes, in order.
    pub inputs: Vec<CallInput>,
    /// What else it takes.
    pub attributes: Vec<Attribute>,
    /// Names of what it gives.
    pub results: &'static [&'static str],
    /// Whether `results` names one of any number.
    pub many: bool,
    run: Run,
}

impl Call {
    /// A function of one result, of no inputs until [`inputs`](Self::inputs) names them, which [`run`](Self::run) calls.
    pub fn new(name: &'static str, doc: &'static str) -> Self {
        let run = Run::All(|a| Err(Error::internal(format!("{}: a call without a function", a.call.name))));
        let (inputs, attributes) = (Vec::new(), Vec::new());
        Self { name, doc, inputs, attributes, results: &["y"], many: false, run }
    }
    /// Inputs that have to be given.
    #[must_use]
    pub fn inputs(mut self, names: &[&'static str]) -> Self {
        self.inputs.extend(names.iter().map(|name| CallInput { name, arity: Arity::One }));
        self
    }
    /// Inputs that may be left out.
    #[must_use]
    pub fn optional_inputs(mut self, names: &[&'static str]) -> Self {
        self.inputs.extend(names.iter().map(|name| CallInput { name, arity: Arity::Optional }));
        self
    }
    /// Any number of inputs, the last ones.
    #[must_use]
    pub fn list(mut self, name: &'static str) -> Self {
        self.inputs.push(CallInput { name, arity: Arity::List });
        self
    }
    fn attribute(mut self, name: &'static str, kind: Kind, default: Option<Value>, optional: bool) -> Self {
        self.attributes.push(Attribute { name, kind, default, optional });
        self
    }
    /// An attribute that has to be given.
    #[must_use]
    pub fn required(self, name: &'static str, kind: Kind) -> Self {
        self.attribute(name, kind, None, false)
    }
    /// An attribute that has this value where it is not given; its kind is the value's.
    #[must_use]
    pub fn default(self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let kind = value.kind();
        self.attribute(name, kind, Some(value), false)
    }
    /// An attribute that may go without a value, and does where it is not given.
    #[must_use]
    pub fn optional(self, name: &'static str, kind: Kind) -> Self {
        self.attribute(name, kind, Some(Value::None), true)
    }
    /// The same with a value where it is not given.
    #[must_use]
    pub fn optional_default(self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let kind = value.kind();
        self.attribute(name, kind, Some(value), true)
    }
    /// One of these names, the first where none is given.
    #[must_use]
    pub fn choice(self, name: &'static str, names: &'static [&'static str]) -> Self {
        let first = names.first().map(|name| Value::Text((*name).into()));
        self.attribute(name, Kind::Choice(names), first, false)
    }
    /// `seed` and `offset` of a random stream: [`Args::generator`].
    #[must_use]
    pub fn random(self) -> Self {
        self.attribute("seed", Kind::Seed, Some(Value::Int(0)), false).default("offset", 0)
    }
    /// Names of several results.
    #[must_use]
    pub fn results(mut self, names: &'static [&'static str]) -> Self {
        self.results = names;
        self
    }
    /// The function, of one result.
    #[must_use]
    pub fn run(mut self, run: fn(&Args<'_>) -> Result<Tensor>) -> Self {
        self.run = Run::One(run);
        self
    }
    /// The function, of the results that [`results`](Self::results) names.
    #[must_use]
    pub fn run_all(mut self, run: fn(&Args<'_>) -> Result<Vec<Tensor>>) -> Self {
        self.run = Run::All(run);
        self
    }
    /// The function, of any number of results.
    #[must_use]
    pub fn run_many(mut self, run: fn(&Args<'_>) -> Result<Vec<Tensor>>) -> Self {
        (self.run, self.many) = (Run::All(run), true);
        self
    }

    /// Calls it. `None` stands for an input that is left out; those at the end need none. The typed function is what runs: its checks,
    /// gradients and errors are the same.
    ///
    /// # Errors
    /// `Format` where inputs or attributes are missing, unknown, given twice or of another kind; then the function's own.
    pub fn invoke(&self, inputs: &[Option<&Tensor>], attributes: &[(&str, Value)]) -> Result<Vec<Tensor>> {
        self.check_inputs(inputs)?;
        let args = Args { call: self, inputs, values: self.values(attributes)? };
        match self.run {
            Run::One(run) => run(&args).map(|y| vec![y]),
            Run::All(run) => run(&args),
        }
    }

    fn check_inputs(&self, inputs: &[Option<&Tensor>]) -> Result<()> {
        let names = || self.inputs.iter().map(|input| input.name).collect::<Vec<_>>().join(", ");
        let list = self.inputs.last().is_some_and(|input| input.arity == Arity::List);
        for (i, input) in self.inputs.iter().enumerate() {
            if input.arity != Arity::Optional && inputs.get(i).is_none_or(Option::is_none) {
                let name = input.name;
                return Err(Error::format(format!("{}: input {name} is missing, of {}", self.name, names())));
            }
        }
        if list && inputs.iter().skip(self.inputs.len()).any(Option::is_none) {
            return Err(Error::format(format!("{}: a tensor among {} is missing", self.name, names())));
        }
        if !list && inputs.len() > self.inputs.len() {
            return Err(Error::format(format!(
                "{}: {} inputs, expected {}: {}",
                self.name,
                inputs.len(),
                self.inputs.len(),
                names()
            )));
        }
        Ok(())
    }

    /// Values in the order of the attributes.
    fn values(&self, given: &[(&str, Value)]) -> Result<Vec<Value>> {
        let mut values: Vec<Option<Value>> = vec![None; self.attributes.len()];
        for (name, value) in given {
            let Some(i) = self.attributes.iter().position(|a| a.name == *name) else {
                let names: Vec<&str> = self.attributes.iter().map(|a| a.name).collect();
                let near = did_you_mean(name, names.iter().copied());
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(Error::format(format!(
                    "{}: no attribute {name:?}, there are {known}{near}",
                    self.name
                )));
            };
            if values[i].is_some() {
                return Err(Error::format(format!("{}: attribute {name} is given twice", self.name)));
            }
            values[i] = Some(self.attributes[i].accept(self.name, value)?);
        }
        let filled = self.attributes.iter().zip(values).map(|(attribute, value)| {
            value.or_else(|| attribute.default.clone()).ok_or_else(|| {
                Error::format(format!(
                    "{}: attribute {} is missing, expected {}",
                    self.name,
                    attribute.name,
                    attribute.kind.expected()
                ))
            })
        });
        filled.collect()
    }
}

impl Attribute {
    fn accept(&self, call: &str, value: &Value) -> Result<Value> {
        match (self.kind, value) {
            (_, Value::None) if self.optional => return Ok(Value::None),
            (Kind::Float, Value::Int(i)) => return Ok(Value::Float(*i as f64)),
            (Kind::Ints, Value::Int(i)) => return Ok(Value::Ints(vec![*i])),
            (Kind::Choice(names), Value::Text(name)) if names.contains(&name.as_str()) => {}
            (Kind::Float, Value::Float(_))
            | (Kind::Int | Kind::Seed, Value::Int(_))
            | (Kind::Bool, Value::Bool(_))
            | (Kind::Ints, Value::Ints(_))
            | (Kind::Text, Value::Text(_))
            | (Kind::DType, Value::DType(_)) => {}
            (kind, value) => {
                return Err(Error::format(format!(
                    "{call}: attribute {} is {}, expected {}",
                    self.name,
                    value.shown(),
                    kind.expected()
                )));
            }
        }
        Ok(value.clone())
    }
}

/// What a call was given, checked, with defaults filled in.
pub struct Args<'a> {
    call: &'a Call,
    inputs: &'a [Option<&'a Tensor>],
    values: Vec<Value>,
}

impl<'a> Args<'a> {
    /// The call's name.
    pub fn name(&self) -> &'static str {
        self.call.name
    }
    /// The first `N` inputs, none of them left out.
    ///
    /// # Errors
    /// `Internal` where the call does not require them.
    pub fn inputs<const N: usize>(&self) -> Result<[&'a Tensor; N]> {
        let found: Vec<&Tensor> = self.inputs.iter().take(N).copied().flatten().collect();
        found.try_into().map_err(|_| Error::internal(format!("{}: expected {N} inputs", self.call.name)))
    }
    /// The input of this name, if it was given.
    pub fn optional(&self, name: &str) -> Option<&'a Tensor> {
        let at = self.call.inputs.iter().position(|input| input.name == name)?;
        self.inputs.get(at).copied().flatten()
    }
    /// Inputs from the list's first on.
    pub fn list(&self) -> Vec<&'a Tensor> {
        self.inputs.iter().skip(self.call.inputs.len().saturating_sub(1)).copied().flatten().collect()
    }
    /// An attribute's value.
    ///
    /// # Errors
    /// `Format` where it does not fit the type, a negative number of rows, say.
    pub fn get<T: FromValue>(&self, name: &str) -> Result<T> {
        let found = self.find(name)?;
        found.ok_or_else(|| Error::format(format!("{}: attribute {name} has no value", self.call.name)))
    }
    /// The same of an attribute that may go without.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn find<T: FromValue>(&self, name: &str) -> Result<Option<T>> {
        let at = self.call.attributes.iter().position(|a| a.name == name);
        let value = at.and_then(|at| self.values.get(at));
        let value = value
            .ok_or_else(|| Error::internal(format!("{}: no attribute {name} declared", self.call.name)))?;
        if *value == Value::None {
            return Ok(None);
        }
        T::from_value(value).map(Some).ok_or_else(|| {
            Error::format(format!(
                "{}: attribute {name} is {}, expected {}",
                self.call.name,
                value.shown(),
                T::EXPECTED
            ))
        })
    }
    /// An attribute of integers that holds for both axes of an image where it is one number.
    ///
    /// # Errors
    /// As [`get`](Self::get); `Format` for another number of integers than one or two.
    pub fn pair(&self, name: &str) -> Result<[usize; 2]> {
        let given: Vec<usize> = self.get(name)?;
        match given[..] {
            [both] => Ok([both; 2]),
            [h, w] => Ok([h, w]),
            _ => Err(Error::format(format!(
                "{}: attribute {name} is {given:?}, expected one number or two",
                self.call.name
            ))),
        }
    }
    /// Attributes `seed` and `offset` as a generator.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn generator(&self) -> Result<crate::Generator> {
        let bits = |name: &str| self.get::<i64>(name).map(i64::cast_unsigned);
        Ok(crate::Generator { seed: bits("seed")?, offset: bits("offset")? })
    }
}
