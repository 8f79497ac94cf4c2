//! A graph of operations as JSON.

use super::spec::{GraphInput, GraphNode, KernelUse, NodeResult, Setting, Size, Spec, ValueType, WeightInfo};
use crate::ops::call::Value;
use crate::{DType, Error, Result};
use serde_json::{Map, Value as Json, json};

fn size_out(size: Size) -> Json {
    match size {
        Size::Fixed(n) => json!(n),
        Size::Rows(k) => json!({ "rows": k }),
    }
}

fn form_out(form: &ValueType) -> Json {
    let sizes: Vec<Json> = form.sizes.iter().map(|s| size_out(*s)).collect();
    json!({ "shape": sizes, "dtype": form.dtype.to_string() })
}

fn value_out(value: &Value) -> Json {
    match value {
        Value::None => Json::Null,
        // JSON does not support these numbers.
        Value::Float(v) if !v.is_finite() => json!({ "float": v.to_string() }),
        Value::Float(v) => json!(v),
        Value::Int(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::Ints(v) => json!(v),
        Value::Text(v) => json!(v),
        Value::DType(v) => json!({ "dtype": v.to_string() }),
    }
}

fn setting_out(setting: &Setting) -> Json {
    match setting {
        Setting::Plain(value) => value_out(value),
        Setting::Rows(k) => size_out(Size::Rows(*k)),
        Setting::Sizes(sizes) => Json::Array(sizes.iter().map(|s| size_out(*s)).collect()),
    }
}

fn node_out(node: &GraphNode) -> Json {
    let attributes: Map<String, Json> =
        node.attributes.iter().map(|(name, setting)| (name.clone(), setting_out(setting))).collect();
    let result = |made: &NodeResult| {
        let mut out = form_out(&made.form);
        out["of"] = json!(made.of);
        out
    };
    let kernel = |k: &KernelUse| json!({ "variant": k.variant, "name": k.name, "defines": k.defines, "global": k.global, "local": k.local });
    json!({
        "op": node.op,
        "layer": node.layer,
        "inputs": node.inputs,
        "attributes": attributes,
        "results": node.results.iter().map(result).collect::<Vec<_>>(),
        "kernels": node.kernels.iter().map(kernel).collect::<Vec<_>>(),
    })
}

/// Converts a graph to JSON.
pub(super) fn write(spec: &Spec) -> Json {
    let input = |input: &GraphInput| {
        let mut out = form_out(&input.form);
        out["name"] = json!(input.name);
        out
    };
    let weight = |w: &WeightInfo| json!({ "name": w.name, "shape": w.dims, "dtype": w.dtype.to_string(), "hash": w.hash });
    json!({
        "any_rows": spec.any_rows,
        "rows": spec.rows,
        "device": spec.device,
        "inputs": spec.inputs.iter().map(input).collect::<Vec<_>>(),
        "weights": spec.weights.iter().map(weight).collect::<Vec<_>>(),
        "nodes": spec.nodes.iter().map(node_out).collect::<Vec<_>>(),
        "outputs": spec.outputs,
    })
}

/// Position of a part of a document within its parent.
#[derive(Clone, Copy)]
enum Step<'a> {
    Name(&'a str),
    Index(usize),
}

/// A part of a document, with its parents. Errors report its position.
struct At<'a> {
    json: &'a Json,
    within: Option<(&'a At<'a>, Step<'a>)>,
}

impl std::fmt::Display for At<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.within {
            None => Ok(()),
            Some((outer, Step::Index(i))) => write!(f, "{outer}[{i}]"),
            Some((outer, Step::Name(name))) if outer.within.is_none() => f.write_str(name),
            Some((outer, Step::Name(name))) => write!(f, "{outer}.{name}"),
        }
    }
}

impl At<'_> {
    fn wrong<T>(&self, expected: &str) -> Result<T> {
        let mut shown: String = self.json.to_string().chars().take(60).collect();
        if shown.is_empty() {
            shown = "nothing".into();
        }
        Err(Error::format(format!("{}: {shown} is not {expected}", self)))
    }
    fn get<'b>(&'b self, name: &'b str) -> Result<At<'b>> {
        let at =
            At { json: self.json.get(name).unwrap_or(&Json::Null), within: Some((self, Step::Name(name))) };
        match self.json.get(name) {
            Some(_) => Ok(at),
            None => Err(Error::format(format!("{at} is missing"))),
        }
    }
    fn list<T>(&self, read: impl Fn(&At<'_>) -> Result<T>) -> Result<Vec<T>> {
        let Json::Array(all) = self.json else { return self.wrong("a list") };
        let each = all.iter().enumerate();
        each.map(|(i, json)| read(&At { json, within: Some((self, Step::Index(i))) })).collect()
    }
    fn text(&self) -> Result<String> {
        self.json.as_str().map_or_else(|| self.wrong("a text"), |text| Ok(text.to_owned()))
    }
    fn count(&self) -> Result<usize> {
        let n = self.json.as_u64().and_then(|n| usize::try_from(n).ok());
        n.map_or_else(|| self.wrong("a count"), Ok)
    }
    fn flag(&self) -> Result<bool> {
        self.json.as_bool().map_or_else(|| self.wrong("true or false"), Ok)
    }
    fn dtype(&self) -> Result<DType> {
        let known = self.json.as_str().and_then(DType::parse);
        known.map_or_else(|| self.wrong("a storage type"), Ok)
    }
    fn each<T>(&self, name: &str, read: impl Fn(&At<'_>) -> Result<T>) -> Result<Vec<T>> {
        self.get(name)?.list(read)
    }
    fn triple(&self) -> Result<[usize; 3]> {
        let all = self.list(|n| n.count())?;
        all.try_into().or_else(|_| self.wrong("three counts"))
    }
    /// Parses a size, or an integer, which only in attributes may be negative.
    fn size(&self) -> Result<Size> {
        if let Some(n) = self.json.as_i64() {
            return Ok(Size::Fixed(n));
        }
        let rows = self.json.as_object().filter(|o| o.len() == 1).and_then(|o| o.get("rows")?.as_i64());
        rows.filter(|k| *k != 0).map_or_else(|| self.wrong("a size"), |k| Ok(Size::Rows(k)))
    }
    fn form(&self) -> Result<ValueType> {
        let sizes = self.each("shape", |size| match size.size()? {
            Size::Fixed(n) | Size::Rows(n) if n < 0 => size.wrong("a size"),
            size => Ok(size),
        })?;
        Ok(ValueType { sizes, dtype: self.get("dtype")?.dtype()? })
    }
    fn setting(&self) -> Result<Setting> {
        Ok(Setting::Plain(match self.json {
            Json::Null => Value::None,
            Json::Bool(v) => Value::Bool(*v),
            Json::String(v) => Value::Text(v.clone()),
            Json::Number(n) => match (n.as_i64(), n.as_f64()) {
                (Some(v), _) => Value::Int(v),
                (None, Some(v)) if !n.is_u64() => Value::Float(v),
                _ => return self.wrong("a number of 64 bits"),
            },
            Json::Array(_) => {
                let sizes = self.list(|size| size.size())?;
                let fixed = sizes.iter().map(|s| match s {
                    Size::Fixed(n) => Some(*n),
                    Size::Rows(_) => None,
                });
                match fixed.collect::<Option<Vec<i64>>>() {
                    Some(all) => Value::Ints(all),
                    None => return Ok(Setting::Sizes(sizes)),
                }
            }
            Json::Object(map) if map.contains_key("dtype") => Value::DType(self.get("dtype")?.dtype()?),
            Json::Object(map) if map.contains_key("float") => {
                let text = self.get("float")?.text()?;
                match text.parse::<f64>() {
                    Ok(v) => Value::Float(v),
                    Err(_) => return self.wrong("a number"),
                }
            }
            Json::Object(_) => match self.size()? {
                Size::Rows(k) => return Ok(Setting::Rows(k)),
                Size::Fixed(n) => Value::Int(n),
            },
        }))
    }
    fn node(&self) -> Result<GraphNode> {
        let attributes = self.get("attributes")?;
        let Json::Object(map) = attributes.json else { return attributes.wrong("attributes by name") };
        let setting = |name: &String| Ok((name.clone(), attributes.get(name)?.setting()?));
        Ok(GraphNode {
            op: self.get("op")?.text()?,
            layer: self.get("layer")?.text()?,
            inputs: self
                .each("inputs", |id| if id.json.is_null() { Ok(None) } else { id.count().map(Some) })?,
            attributes: map.keys().map(setting).collect::<Result<_>>()?,
            results: self
                .each("results", |r| Ok(NodeResult { of: r.get("of")?.count()?, form: r.form()? }))?,
            kernels: self.each("kernels", |k| {
                Ok(KernelUse {
                    variant: k.get("variant")?.text()?,
                    name: k.get("name")?.text()?,
                    defines: k.get("defines")?.text()?,
                    global: k.get("global")?.triple()?,
                    local: k.get("local")?.triple()?,
                })
            })?,
        })
    }
}

/// Parses a graph from JSON, and checks it.
///
/// # Errors
/// `Format` with the position of the error.
pub(super) fn read(json: &Json) -> Result<Spec> {
    let top = At { json, within: None };
    let spec = Spec {
        any_rows: top.get("any_rows")?.flag()?,
        rows: top.get("rows")?.count()?,
        device: top.get("device")?.text()?,
        inputs: top.each("inputs", |i| Ok(GraphInput { name: i.get("name")?.text()?, form: i.form()? }))?,
        weights: top.each("weights", |w| {
            Ok(WeightInfo {
                name: w.get("name")?.text()?,
                dims: w.each("shape", |n| n.count())?,
                dtype: w.get("dtype")?.dtype()?,
                hash: w.get("hash")?.text()?,
            })
        })?,
        nodes: top.each("nodes", |node| node.node())?,
        outputs: top.each("outputs", |n| n.count())?,
    };
    spec.check()?;
    Ok(spec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes may be negative, shapes may not. Errors report the position.
    #[test]
    fn integers_that_grow_with_the_rows_are_read_back() {
        let sizes = vec![Size::Rows(-2), Size::Fixed(-1), Size::Rows(3)];
        for setting in [Setting::Rows(-1), Setting::Rows(4), Setting::Sizes(sizes)] {
            let json = setting_out(&setting);
            assert_eq!(At { json: &json, within: None }.setting().unwrap(), setting);
        }
        let json = json!({ "shape": [2, { "rows": -1 }], "dtype": "f32" });
        let e = At { json: &json, within: None }.form().unwrap_err();
        assert!(e.message().starts_with("shape[1]: "), "{e}");
        let json = json!({ "inputs": [{ "form": { "shape": [0.5] } }] });
        let top = At { json: &json, within: None };
        let e = top.each("inputs", |i| i.get("form")?.form()).unwrap_err();
        assert!(e.message().starts_with("inputs[0].form.shape[0]: 0.5 is not "), "{e}");
    }
}
