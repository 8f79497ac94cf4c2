//! Operations by name: the inputs and results of a call, for callers without Rust's types, such as Python, C and files.
//!
//! A [`Call`] is in its operation's file, next to the function that it calls; [`calls`](super::calls) lists all of them.

mod value;

use crate::{Error, Result, Tensor};
use netcl_device::did_you_mean;
pub use value::{AttributeKind, FromValue, Value};

/// Number of tensors of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one.
    One,
    /// At most one.
    Optional,
    /// All remaining tensors, at least one. Such an input is the last.
    List,
}

/// A tensor input of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallInput {
    /// Name, as used in the operation's errors.
    pub name: &'static str,
    /// Number of tensors.
    pub arity: Arity,
}

/// An argument of a call that is not a tensor.
#[derive(Clone, Debug)]
pub struct Attribute {
    /// Name.
    pub name: &'static str,
    /// Kind of its values.
    pub kind: AttributeKind,
    /// Default value; `None` if the attribute is required.
    pub default: Option<Value>,
    /// Whether the value may be absent.
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
    /// Name of the Rust function.
    pub name: &'static str,
    /// One paragraph: formula, shapes, types, special cases.
    pub doc: &'static str,
    /// Tensor inputs, in order.
    pub inputs: Vec<CallInput>,
    /// Other arguments.
    pub attributes: Vec<Attribute>,
    /// Names of the results.
    pub results: &'static [&'static str],
    /// Whether `results` names one entry for any number of results.
    pub many: bool,
    run: Run,
}

impl Call {
    /// Builds a function with one result and no inputs. Add inputs by [`inputs`](Self::inputs), and the function by [`run`](Self::run).
    pub fn new(name: &'static str, doc: &'static str) -> Self {
        let run =
            Run::All(|a| Err(Error::internal(format!("{}: the call does not have a function", a.call.name))));
        let (inputs, attributes) = (Vec::new(), Vec::new());
        Self { name, doc, inputs, attributes, results: &["y"], many: false, run }
    }
    /// Adds required inputs.
    #[must_use]
    pub fn inputs(mut self, names: &[&'static str]) -> Self {
        self.inputs.extend(names.iter().map(|name| CallInput { name, arity: Arity::One }));
        self
    }
    /// Adds optional inputs.
    #[must_use]
    pub fn optional_inputs(mut self, names: &[&'static str]) -> Self {
        self.inputs.extend(names.iter().map(|name| CallInput { name, arity: Arity::Optional }));
        self
    }
    /// Adds a list of any number of inputs as the last input.
    #[must_use]
    pub fn list(mut self, name: &'static str) -> Self {
        self.inputs.push(CallInput { name, arity: Arity::List });
        self
    }
    fn attribute(
        mut self,
        name: &'static str,
        kind: AttributeKind,
        default: Option<Value>,
        optional: bool,
    ) -> Self {
        self.attributes.push(Attribute { name, kind, default, optional });
        self
    }
    /// Adds a required attribute.
    #[must_use]
    pub fn required(self, name: &'static str, kind: AttributeKind) -> Self {
        self.attribute(name, kind, None, false)
    }
    /// Adds an attribute with this default; its kind is that of the value.
    #[must_use]
    pub fn default(self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let kind = value.kind();
        self.attribute(name, kind, Some(value), false)
    }
    /// Adds an attribute without a value by default.
    #[must_use]
    pub fn optional(self, name: &'static str, kind: AttributeKind) -> Self {
        self.attribute(name, kind, Some(Value::None), true)
    }
    /// Adds an attribute whose value may be absent, with this default.
    #[must_use]
    pub fn optional_default(self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let kind = value.kind();
        self.attribute(name, kind, Some(value), true)
    }
    /// Adds an attribute with one of these names; the first is the default.
    #[must_use]
    pub fn choice(self, name: &'static str, names: &'static [&'static str]) -> Self {
        let first = names.first().map(|name| Value::Text((*name).into()));
        self.attribute(name, AttributeKind::Choice(names), first, false)
    }
    /// Adds `seed` and `offset` of a random stream: [`Args::generator`].
    #[must_use]
    pub fn random(self) -> Self {
        self.attribute("seed", AttributeKind::Seed, Some(Value::Int(0)), false).default("offset", 0)
    }
    /// Names several results.
    #[must_use]
    pub fn results(mut self, names: &'static [&'static str]) -> Self {
        self.results = names;
        self
    }
    /// Sets the function, with one result.
    #[must_use]
    pub fn run(mut self, run: fn(&Args<'_>) -> Result<Tensor>) -> Self {
        self.run = Run::One(run);
        self
    }
    /// Sets the function, with the results that [`results`](Self::results) names.
    #[must_use]
    pub fn run_all(mut self, run: fn(&Args<'_>) -> Result<Vec<Tensor>>) -> Self {
        self.run = Run::All(run);
        self
    }
    /// Sets the function, with any number of results.
    #[must_use]
    pub fn run_many(mut self, run: fn(&Args<'_>) -> Result<Vec<Tensor>>) -> Self {
        (self.run, self.many) = (Run::All(run), true);
        self
    }

    /// Calls the function. `None` stands for an omitted input; trailing ones can be left out. The typed function runs with its own checks,
    /// gradients and errors.
    ///
    /// # Errors
    /// `Format` if inputs or attributes are missing, unknown, repeated or of a wrong kind; those of the function.
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
                return Err(Error::format(format!(
                    "{}: missing input {name}; inputs: {}",
                    self.name,
                    names()
                )));
            }
        }
        if list && inputs.iter().skip(self.inputs.len()).any(Option::is_none) {
            return Err(Error::format(format!("{}: a tensor is missing; inputs: {}", self.name, names())));
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

    /// Returns the values in the order of the attributes.
    fn values(&self, given: &[(&str, Value)]) -> Result<Vec<Value>> {
        let mut values: Vec<Option<Value>> = vec![None; self.attributes.len()];
        for (name, value) in given {
            let Some(i) = self.attributes.iter().position(|a| a.name == *name) else {
                let names: Vec<&str> = self.attributes.iter().map(|a| a.name).collect();
                let near = did_you_mean(name, names.iter().copied());
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(Error::format(format!(
                    "{}: unknown attribute {name:?}; expected one of {known}{near}",
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
            (AttributeKind::Float, Value::Int(i)) => return Ok(Value::Float(*i as f64)),
            (AttributeKind::Ints, Value::Int(i)) => return Ok(Value::Ints(vec![*i])),
            (AttributeKind::Choice(names), Value::Text(name)) if names.contains(&name.as_str()) => {}
            (AttributeKind::Float, Value::Float(_))
            | (AttributeKind::Int | AttributeKind::Seed, Value::Int(_))
            | (AttributeKind::Bool, Value::Bool(_))
            | (AttributeKind::Ints, Value::Ints(_))
            | (AttributeKind::Text, Value::Text(_))
            | (AttributeKind::DType, Value::DType(_)) => {}
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

/// Checked arguments of a call, with defaults filled in.
pub struct Args<'a> {
    call: &'a Call,
    inputs: &'a [Option<&'a Tensor>],
    values: Vec<Value>,
}

impl<'a> Args<'a> {
    /// Returns the call's name.
    pub fn name(&self) -> &'static str {
        self.call.name
    }
    /// Returns the first `N` inputs, which must be required ones.
    ///
    /// # Errors
    /// `Internal` if the call does not require them.
    pub fn inputs<const N: usize>(&self) -> Result<[&'a Tensor; N]> {
        let found: Vec<&Tensor> = self.inputs.iter().take(N).copied().flatten().collect();
        found.try_into().map_err(|_| Error::internal(format!("{}: expected {N} inputs", self.call.name)))
    }
    /// Returns the input with this name, if it was given.
    pub fn optional(&self, name: &str) -> Option<&'a Tensor> {
        let at = self.call.inputs.iter().position(|input| input.name == name)?;
        self.inputs.get(at).copied().flatten()
    }
    /// Returns the inputs from the list's first on.
    pub fn list(&self) -> Vec<&'a Tensor> {
        self.inputs.iter().skip(self.call.inputs.len().saturating_sub(1)).copied().flatten().collect()
    }
    /// Returns an attribute's value.
    ///
    /// # Errors
    /// `Format` if it does not fit the type, such as a negative number of rows.
    pub fn get<T: FromValue>(&self, name: &str) -> Result<T> {
        let found = self.find(name)?;
        found.ok_or_else(|| {
            Error::format(format!("{}: attribute {name} does not have a value", self.call.name))
        })
    }
    /// Returns the value of an attribute that may have none.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get).
    pub fn find<T: FromValue>(&self, name: &str) -> Result<Option<T>> {
        let at = self.call.attributes.iter().position(|a| a.name == name);
        let value = at.and_then(|at| self.values.get(at));
        let value = value
            .ok_or_else(|| Error::internal(format!("{}: undeclared attribute {name}", self.call.name)))?;
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
    /// Returns one or two integers for the axes of an image; a single number applies to both.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get); `Format` if there are not one or two integers.
    pub fn pair(&self, name: &str) -> Result<[usize; 2]> {
        let given: Vec<usize> = self.get(name)?;
        match given[..] {
            [both] => Ok([both; 2]),
            [h, w] => Ok([h, w]),
            _ => Err(Error::format(format!(
                "{}: attribute {name} is {given:?}, expected one or two numbers",
                self.call.name
            ))),
        }
    }
    /// Returns the attributes `seed` and `offset` as a generator.
    ///
    /// # Errors
    /// Errors of [`get`](Self::get).
    pub fn generator(&self) -> Result<crate::Generator> {
        let bits = |name: &str| self.get::<i64>(name).map(i64::cast_unsigned);
        Ok(crate::Generator { seed: bits("seed")?, offset: bits("offset")? })
    }
}
