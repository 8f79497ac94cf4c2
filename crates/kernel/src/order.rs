//! Input of a program build, in this process and in build processes.

use crate::define::Value;
use crate::kernel::{CHOSEN, Kernel, PRELUDE, Reload};
use crate::text;
use crate::vendors;
use netcl_device::{Device, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// Options of every build. They exclude `-cl-fast-relaxed-math`, which lets a compiler assume that NaNs never occur, although netcl must detect NaNs.
/// `-w`: a driver may print the number of compiler warnings to the program's stderr without their content. Such warnings are about loops that were
/// not unrolled, and the calling convention of vectors wider than the processor's. `make compile-check` shows the warnings that matter.
const OPTIONS: &str = "-cl-std=CL1.2 -cl-mad-enable -w";

/// Complete input of a program build on a device. Programs are built from it, and its hash names the entry in the disk cache, so that a new field
/// changes both.
#[derive(Clone, Serialize)]
pub struct Order {
    /// Name of the kernel.
    pub kernel: String,
    /// The assembled source.
    pub source: String,
    /// Options of the build.
    pub options: String,
    /// A second build from the output of the first one.
    pub reload: Option<&'static Reload>,
}

impl Order {
    pub(crate) fn of(device: &Device, kernel: &Kernel, defines: &[(&'static str, Value)]) -> Self {
        let capabilities = device.capabilities();
        let own = (kernel.options)(capabilities).to_owned();
        let users = users_options(device, kernel);
        let mut options = vec![OPTIONS.to_owned()];
        options.extend(vendors::options(capabilities).chain([own, users]).filter(|o| !o.is_empty()));
        Self {
            kernel: kernel.name.to_owned(),
            source: assemble(kernel, defines),
            options: options.join(" "),
            reload: kernel.reload,
        }
    }

    /// Adds the size of the work-groups to the declaration of the kernel `entry`, so that the compiler limits the registers per work-item. A
    /// declaration with attributes stays the same.
    pub(crate) fn require_group(&mut self, entry: &str, size: [usize; 3]) {
        if let Some(at) = plain_declaration(&self.source, entry) {
            let [x, y, z] = size;
            self.source.insert_str(at, &format!("__attribute__((reqd_work_group_size({x}, {y}, {z}))) "));
        }
    }
}

/// Returns the options that the settings add: those of the user, or those of quick builds.
fn users_options(device: &Device, kernel: &Kernel) -> String {
    let settings = device.settings();
    let options = settings.build_options.trim();
    if options.is_empty() && settings.quick_builds && device.capabilities().is_cpu() && !kernel.is_hot {
        return "-cl-opt-disable".to_owned();
    }
    options.to_owned()
}

/// Returns the position of `void` in the declaration `__kernel void entry(`.
fn plain_declaration(source: &str, entry: &str) -> Option<usize> {
    source.match_indices(entry).find_map(|(at, _)| {
        let after = source[at + entry.len()..].trim_start();
        let before = source[..at].strip_suffix(|c: char| c.is_ascii_whitespace())?.trim_end();
        let before = before.strip_suffix("void")?;
        (after.starts_with('(') && before.trim_end().ends_with("kernel")).then_some(before.len())
    })
}

/// An [`Order`] in the format that is sent to another process.
#[derive(Serialize, Deserialize)]
pub(crate) struct Line {
    kernel: String,
    source: String,
    options: String,
    reload: Option<String>,
    /// Whether every entry is also created: some drivers compile only then.
    #[serde(default)]
    pub entries: bool,
}

impl From<Order> for Line {
    fn from(order: Order) -> Self {
        let Order { kernel, source, options, reload } = order;
        Self { kernel, source, options, reload: reload.map(|r| r.name.to_owned()), entries: false }
    }
}

impl Line {
    pub fn order(self) -> Result<Order> {
        let Self { kernel, source, options, reload, entries: _ } = self;
        let reload = match reload {
            None => None,
            Some(name) => Some(
                vendors::reload(&name)
                    .ok_or_else(|| Error::format(format!("{kernel}: no second build is named {name}")))?,
            ),
        };
        Ok(Order { kernel, source, options, reload })
    }
}

/// Line from a process that is ready for orders.
pub(crate) const READY: &str = "ready";
/// Answer to an order that was built.
pub(crate) const BUILT: &str = "built";

impl Kernel {
    /// Returns the source that a driver compiles under `defines`, for tools that inspect it without a device.
    pub fn text(&self, defines: &[(&'static str, Value)]) -> String {
        assemble(self, defines)
    }
}

/// Returns the source that the driver compiles: the variant's name, defines, prelude, includes, the kernel.
pub(crate) fn assemble(kernel: &Kernel, defines: &[(&'static str, Value)]) -> String {
    let mut source = String::with_capacity(PRELUDE.len() + kernel.source.len() + 512);
    // Several variants can share one file.
    let _ = writeln!(source, "// {}", kernel.name);
    for (name, value) in defines {
        let _ = writeln!(source, "#define {name} {value}");
    }
    text::append(&mut source, PRELUDE, "");
    let chosen = kernel.choice.map_or_else(Vec::new, |choice| choice.texts_of(defines));
    for include in kernel.includes {
        let texts = if *include == CHOSEN { chosen.as_slice() } else { std::slice::from_ref(include) };
        for text in texts {
            source.push('\n');
            text::append(&mut source, text, &format!("text included by {}", kernel.name));
        }
    }
    if let Some(generate) = kernel.generated {
        source.push('\n');
        text::append(&mut source, &generate(), &format!("text generated for {}", kernel.name));
    }
    source.push('\n');
    text::append(&mut source, kernel.source, &format!("{}.cl", kernel.name));
    source
}

/// Returns the names of the functions that a source declares as kernels.
pub(crate) fn entries(text: &str) -> Vec<String> {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        code.push_str(&rest[..at]);
        rest = rest[at..].find("*/").map_or("", |end| &rest[at + end + 2..]);
    }
    code.push_str(rest);
    let lines = code.lines().map(|l| l.split("//").next().unwrap_or_default());
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut words =
        code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).peekable();
    let mut names = Vec::new();
    while let Some(word) = words.next() {
        if word != "__kernel" && word != "kernel" {
            continue;
        }
        // Attributes may appear in between; another kernel starts a new declaration.
        let void = words.by_ref().find(|w| *w == "void");
        names.extend(void.and_then(|_| words.next()).map(String::from));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_text_are_found_behind_attributes_and_not_in_comments() {
        let text = "// a kernel void in_words(\n/* kernel void old(void); */\n__kernel void first(__global int *x) {}\n\
            __kernel __attribute__((reqd_work_group_size(WG, 1, 1)))\nvoid second(int n) {}\nvoid helper() {}\nkernel void third() {}";
        assert_eq!(entries(text), ["first", "second", "third"]);
    }

    #[test]
    fn a_group_becomes_an_attribute_of_the_kernel_alone() {
        let source = "void sum(int n) {}\n__kernel void sums(__global int *x) {}\n#define T __kernel  void sum\\\n(int n) {}";
        let source = source.replace("\\\n", " ");
        let mut order =
            Order { kernel: "k".into(), source: source.clone(), options: String::new(), reload: None };
        order.require_group("sum", [512, 1, 1]);
        let expected = "__kernel  __attribute__((reqd_work_group_size(512, 1, 1))) void sum (int n)";
        assert_eq!(order.source, source.replace("__kernel  void sum (int n)", expected));
        order.require_group("sum", [64, 1, 1]);
        assert_eq!(order.source.matches("reqd").count(), 1);
    }

    #[test]
    fn a_define_chooses_texts_by_their_names() {
        static KERNEL: Kernel = Kernel::new("k", "// last\n")
            .include(&["// first\n", CHOSEN, "// after\n"])
            .choose("KIND", || vec![("A", "// text a\n"), ("B_1", "// text b\n"), ("C", "// text c\n")]);
        let lines = |value: Option<Value>| {
            let defines: Vec<_> = value.map(|value| ("KIND", value)).into_iter().collect();
            let text = KERNEL.text(&defines).replace(PRELUDE, "");
            let own = |line: &&str| line.starts_with("// ") && !line.contains(" k");
            text.lines().filter(own).map(|line| line[3..].to_owned()).collect::<Vec<_>>().join(", ")
        };
        assert_eq!(lines(None), "first, after, last");
        assert_eq!(lines(Some("B_1".into())), "first, text b, after, last");
        assert_eq!(
            lines(Some(crate::Text::new("OF(C, 7) OF(A, 1)").into())),
            "first, text a, text c, after, last"
        );
        static OTHER: Kernel =
            Kernel::new("k", "// last\n").include(&[CHOSEN]).choose("KIND", || vec![("A", "int a;\n")]);
        assert_ne!(KERNEL.fingerprint(), OTHER.fingerprint());
    }

    #[test]
    fn orders_survive_the_way() {
        let order = Order {
            kernel: "k".into(),
            source: "a\n\"b\"".into(),
            options: "-x".into(),
            reload: Some(&crate::vendors::nvidia::SM90A),
        };
        let line = serde_json::to_string(&Line::from(order.clone())).unwrap();
        let back = serde_json::from_str::<Line>(&line).unwrap().order().unwrap();
        assert_eq!((back.source, back.options), (order.source, order.options));
        assert_eq!(back.reload.unwrap().name, "sm_90a");
        let unknown = line.replace("sm_90a", "sm_1000");
        assert!(serde_json::from_str::<Line>(&unknown).unwrap().order().is_err());
    }
}
