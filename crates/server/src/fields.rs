//! The fields of a request: each is taken by name and type, and a field that was not taken is an error.

use crate::error::{ApiError, ApiResult};
use serde_json::{Map, Value};

/// A JSON object whose fields are taken one by one. A field that is `null` counts as absent.
#[derive(Debug)]
pub struct Fields {
    /// Prefix of field names in errors, such as `response_format.`.
    prefix: String,
    fields: Map<String, Value>,
}

impl Fields {
    /// Parses the body of a request.
    ///
    /// # Errors
    /// 400 if the body is not a JSON object.
    pub fn of_body(body: &[u8]) -> ApiResult<Self> {
        if body.is_empty() {
            return Err(ApiError::invalid("The body of the request is empty, expected a JSON object"));
        }
        let value: Value = serde_json::from_slice(body)
            .map_err(|e| ApiError::invalid(format!("The body of the request is not valid JSON: {e}")))?;
        match value {
            Value::Object(fields) => Ok(Self { prefix: String::new(), fields }),
            other => {
                let what = kind(&other);
                Err(ApiError::invalid(format!("The body of the request is {what}, expected an object")))
            }
        }
    }

    /// Returns the fields of an object within a request, called `name` in errors.
    ///
    /// # Errors
    /// 400 if the value is not an object.
    pub fn of(name: &str, value: Value) -> ApiResult<Self> {
        match value {
            Value::Object(fields) => Ok(Self { prefix: format!("{name}."), fields }),
            other => Err(wrong(name, &other, "an object")),
        }
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// Returns a field without taking it; `None` if it is `null`.
    pub fn peek(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    /// Takes a field of any type.
    pub fn any(&mut self, field: &str) -> Option<Value> {
        self.fields.shift_remove(field).filter(|value| !value.is_null())
    }

    /// Takes a string.
    ///
    /// # Errors
    /// 400 with the field name; the same for all following methods.
    pub fn text(&mut self, field: &str) -> ApiResult<Option<String>> {
        match self.any(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.name(field), &other, "a string")),
        }
    }

    /// Takes a Boolean.
    ///
    /// # Errors
    /// 400 with the field name.
    pub fn flag(&mut self, field: &str) -> ApiResult<Option<bool>> {
        match self.any(field) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(&self.name(field), &other, "true or false")),
        }
    }

    /// Takes a number within a range.
    ///
    /// # Errors
    /// 400 with the field name and the range.
    pub fn number(&mut self, field: &str, least: f64, most: f64) -> ApiResult<Option<f32>> {
        let Some(value) = self.any(field) else { return Ok(None) };
        let expected = || match most >= f64::from(f32::MAX) {
            true => format!("a number of at least {least}"),
            false => format!("a number between {least} and {most}"),
        };
        match value.as_f64() {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number as f32)),
            _ => Err(wrong(&self.name(field), &value, &expected())),
        }
    }

    /// Takes an integer within a range.
    ///
    /// # Errors
    /// 400 with the field name and the range.
    pub fn whole(&mut self, field: &str, least: usize, most: usize) -> ApiResult<Option<usize>> {
        let Some(value) = self.any(field) else { return Ok(None) };
        // In JSON, 1.0 is also an integer.
        let number = value.as_u64().or_else(|| {
            value.as_f64().filter(|x| x.fract() == 0.0 && (0.0..9e15).contains(x)).map(|x| x as u64)
        });
        match number.and_then(|number| usize::try_from(number).ok()) {
            Some(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => {
                let expected = match most {
                    usize::MAX => format!("a whole number of at least {least}"),
                    _ => format!("a whole number between {least} and {most}"),
                };
                Err(wrong(&self.name(field), &value, &expected))
            }
        }
    }

    /// Takes any integer, for example a seed.
    ///
    /// # Errors
    /// 400 with the field name.
    pub fn integer(&mut self, field: &str) -> ApiResult<Option<i64>> {
        let Some(value) = self.any(field) else { return Ok(None) };
        let number = value.as_i64().or_else(|| value.as_u64().map(|n| n as i64));
        number.map(Some).ok_or_else(|| wrong(&self.name(field), &value, "a whole number"))
    }

    /// Takes an object.
    ///
    /// # Errors
    /// 400 with the field name.
    pub fn object(&mut self, field: &str) -> ApiResult<Option<Fields>> {
        let name = self.name(field);
        self.any(field).map(|value| Self::of(&name, value)).transpose()
    }

    /// Takes a list.
    ///
    /// # Errors
    /// 400 with the field name.
    pub fn list(&mut self, field: &str) -> ApiResult<Option<Vec<Value>>> {
        match self.any(field) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong(&self.name(field), &other, "an array")),
        }
    }

    /// Takes a string or a list of strings.
    ///
    /// # Errors
    /// 400 with the field name.
    pub fn texts(&mut self, field: &str) -> ApiResult<Vec<String>> {
        match self.any(field) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(list)) => {
                let text = |value: &Value| match value {
                    Value::String(text) => Ok(text.clone()),
                    other => Err(wrong(&self.name(field), other, "an array of strings")),
                };
                list.iter().map(text).collect()
            }
            Some(other) => Err(wrong(&self.name(field), &other, "a string or an array of strings")),
        }
    }

    /// Returns the remaining fields.
    pub fn rest(self) -> Map<String, Value> {
        self.fields
    }

    /// Ignores fields that do not affect an answer.
    pub fn pass_over(&mut self, fields: &[&str]) {
        for field in fields {
            self.fields.shift_remove(*field);
        }
    }

    /// Takes a field that may only have the value without effect.
    ///
    /// # Errors
    /// 400 with the field name for any other value.
    pub fn only(&mut self, field: &str, value: &Value) -> ApiResult<()> {
        match self.any(field) {
            Some(other) if other != *value => {
                let name = self.name(field);
                let message = format!("{name}: {other} is not supported, only {value} is");
                Err(ApiError { code: Some("unsupported_value"), ..ApiError::field(name, message) })
            }
            _ => Ok(()),
        }
    }

    /// Ends the parsing.
    ///
    /// # Errors
    /// 400 with the name of a field that was not taken.
    pub fn end(self) -> ApiResult<()> {
        match self.fields.iter().find(|(_, value)| !value.is_null()) {
            Some((field, _)) => Err(ApiError::unknown(&self.name(field))),
            None => Ok(()),
        }
    }
}

/// Returns the error of a value with an unexpected type.
pub fn wrong(name: &str, value: &Value, expected: &str) -> ApiError {
    let found = match value {
        Value::Number(number) => number.to_string(),
        other => kind(other).to_owned(),
    };
    ApiError::field(name, format!("{name} is {found}, expected {expected}"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_by_type_and_none_is_ignored() {
        let body = br#"{"n": 2, "t": 0.5, "stop": ["a"], "user": "x", "seed": -3, "no": null, "f": 1.0, "more": {"x": 1}}"#;
        let mut fields = Fields::of_body(body).unwrap();
        assert_eq!(fields.whole("n", 1, 4), Ok(Some(2)));
        assert_eq!(fields.number("t", 0.0, 2.0), Ok(Some(0.5)));
        assert_eq!(fields.texts("stop"), Ok(vec!["a".into()]));
        assert_eq!(fields.integer("seed"), Ok(Some(-3)));
        assert_eq!((fields.flag("no"), fields.text("absent")), (Ok(None), Ok(None)));
        assert_eq!(fields.whole("f", 1, usize::MAX), Ok(Some(1)));
        fields.pass_over(&["user"]);
        let mut more = fields.object("more").unwrap().unwrap();
        assert_eq!(more.flag("x").unwrap_err().param.as_deref(), Some("more.x"));
        fields.end().unwrap();

        let wrong = |body: &str| Fields::of_body(body.as_bytes()).unwrap();
        assert_eq!(wrong(r#"{"n": 9}"#).whole("n", 1, 4).unwrap_err().param.as_deref(), Some("n"));
        assert!(wrong(r#"{"n": 1.5}"#).whole("n", 1, 4).is_err());
        assert!(wrong(r#"{"t": 3}"#).number("t", 0.0, 2.0).unwrap_err().message.contains("between 0 and 2"));
        assert!(wrong(r#"{"s": [1]}"#).texts("s").is_err());
        let error = wrong(r#"{"frobnicate": 1}"#).end().unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("frobnicate"), Some("unsupported_parameter")));
        assert!(wrong(r#"{"b": 2}"#).only("b", &1.into()).is_err() && Fields::of_body(b"[1]").is_err());
    }
}
