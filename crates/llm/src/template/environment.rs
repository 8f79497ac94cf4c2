//! The template engine, configured like Jinja2 in `transformers`.

use super::python::{self, Generator, Json};
use super::rewrite::{GENERATED, HELD, KEPT, WHOLE};
use super::spans::{CLOSE, OPEN};
use super::{MAX_STEPS, clock};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions};
use std::time::Duration;

/// Maximum nesting of macro calls.
const CALLS: usize = 60;

/// Returns a new engine.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    environment.set_fuel(Some(MAX_STEPS));
    environment.set_recursion_limit(CALLS);
    environment.set_debug(false);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|out, state, value| match value.as_str() {
        Some(text) => out.write_str(text).map_err(Error::from),
        None => out.write_str(&string(state, value)?).map_err(Error::from),
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |state: &State<'_, '_>, value: Value| string(state, &value));
    environment.add_filter("list", list);
    environment.add_filter(WHOLE, whole);
    environment.add_filter(HELD, held);
    environment.add_filter(KEPT, kept);
    environment.add_filter(GENERATED, |state: &State<'_, '_>, text: String| {
        state.consume_fuel(text.len() as u64 / 64)?;
        Ok::<_, Error>(format!("{OPEN}{text}{CLOSE}"))
    });
    made_of_others(&mut environment);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    // In Python these return single-pass iterators, not lists.
    macro_rules! lazy {
        ($name:ident $(, $argument:ident: $type:ty => $given:expr)*) => {
            environment.add_filter(
                stringify!($name),
                |state: &mut State<'_, '_>, value: Value, $($argument: $type,)* others: Rest<ValueOrKwargs>| {
                    let items = filters::$name(state, value, $($given,)* others)?;
                    Ok::<_, Error>(Value::from_object(Generator(items)))
                },
            );
        };
    }
    lazy!(map);
    lazy!(select, test: Option<String> => test.map(Into::into));
    lazy!(reject, test: Option<String> => test.map(Into::into));
    lazy!(selectattr, name: String => name.into(), test: Option<String> => test.map(Into::into));
    lazy!(rejectattr, name: String => name.into(), test: Option<String> => test.map(Into::into));
    environment
}

/// Adds functions and filters that put values into others. Their results are measured like list literals.
fn made_of_others(environment: &mut Environment<'static>) {
    environment.add_function("dict", |state: &State<'_, '_>, value: Option<Value>, others: Kwargs| {
        held(state, functions::dict(value, others)?)
    });
    environment.add_function("namespace", |state: &State<'_, '_>, defaults: Option<ValueOrKwargs>| {
        let made = functions::namespace(defaults)?;
        let keys: Vec<Value> = made.try_iter()?.collect();
        keys.iter().try_for_each(|key| kept(state, made.get_item(key)?).map(drop))?;
        Ok::<_, Error>(made)
    });
    environment.add_filter("zip", |state: &State<'_, '_>, value: Value, others: Rest<Value>| {
        held(state, filters::zip(state, value, others)?)
    });
    environment.add_filter(
        "batch",
        |state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>| {
            held(state, filters::batch(state, value, count, fill)?)
        },
    );
    environment.add_filter(
        "slice",
        |state: &State<'_, '_>, value: Value, count: usize, fill: Option<Value>| {
            held(state, filters::slice(state, value, count, fill)?)
        },
    );
}

/// Converts a value with `str`, and counts its cost.
fn string(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut text = String::new();
    python::text(value, &mut text)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(text)
}

/// Measures a list or a dictionary. Values inside others are shared, not copied, so a few steps can create an enormous value; this check stops it.
fn held(state: &State, value: Value) -> Result<Value, Error> {
    state.consume_fuel(python::measure(&value, |_| Ok(()))? / 64)?;
    Ok(value)
}

/// Measures the new value of a namespace attribute. A namespace in a namespace could contain itself.
fn kept(state: &State, value: Value) -> Result<Value, Error> {
    let check = |value: &Value| match value.as_object() {
        Some(object) if object.type_name().ends_with("::Namespace") => {
            Err(Error::new(ErrorKind::InvalidOperation, "a namespace in a namespace"))
        }
        _ => Ok(()),
    };
    state.consume_fuel(python::measure(&value, check)? / 64)?;
    Ok(value)
}

/// Returns all items of a value.
fn list(state: &State, value: Value) -> Result<Vec<Value>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.chars().map(Value::from).collect());
    }
    let mut items = Vec::new();
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        items.push(item);
    }
    Ok(items)
}

/// Evaluates a lazily joined list and counts its cost; returns any other value unchanged.
fn whole(state: &State, value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            let items = list(state, value)?;
            state.consume_fuel(items.len() as u64)?;
            Ok(Value::from(items))
        }
        _ => Ok(value),
    }
}

/// Methods of Python values.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    // The width of a field may be any number, and the field is created before it is counted.
    let wide = |text: &str| text.split(|c: char| !c.is_ascii_digit()).any(|digits| digits.len() > 4);
    if name == "format" && value.as_str().is_some_and(wide) {
        return Err(Error::new(ErrorKind::InvalidOperation, "format: a field of more than 9999 characters"));
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, arguments)
}

/// Implements `json.dumps` with `ensure_ascii=False`, without HTML escaping.
fn tojson(state: &State, value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = match &indent {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(count) => {
            let count = usize::try_from(count.clone())?;
            if count > 64 {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: an indent of {count} spaces"),
                ));
            }
            Some(" ".repeat(count))
        }
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two texts"));
        }
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let text = Json { indent, item, key, ascii, sorted }.text(&value)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}

/// Implements `strftime_now` for a given time.
pub(super) fn strftime(now: Duration) -> impl Fn(String) -> Result<String, Error> + Send + Sync + 'static {
    move |format| clock::format(now, &format).map_err(|why| Error::new(ErrorKind::InvalidOperation, why))
}
