//! A built program and information about its kernels.

use crate::compile::{BuildError, Source, compile_for, with_stack};
use crate::exec::bytecode::Code;
use crate::exec::{Constants, lower};
use crate::hir::{self, FunctionId};
use crate::options::{Includes, Target};
use crate::source::Span;
use crate::types::{ImageAccess, ImageKind, Space, Type};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A program that built, ready to launch its kernels.
#[derive(Debug)]
pub struct Program {
    /// Unique number in the process, also after the program was dropped.
    number: u64,
    hir: hir::TranslationUnit,
    constants: Constants,
    kernels: Vec<KernelInfo>,
    lowered: Mutex<HashMap<(FunctionId, bool), Lowered>>,
}

type Lowered = Result<Arc<Code>, (Span, String)>;

/// Kind of a kernel argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgKind {
    /// A pointer to global or constant memory: a buffer.
    Buffer {
        /// Declared `__constant`.
        constant: bool,
        /// Whether the kernel cannot write through it: `const` or `__constant`.
        read_only: bool,
    },
    /// A pointer to local memory: a size.
    Local,
    /// An image of this kind.
    Image(ImageKind, ImageAccess),
    /// A sampler.
    Sampler,
    /// A value of this many bytes.
    Value(u64),
}

/// A parameter of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgInfo {
    /// Its name.
    pub name: String,
    /// Its type in source form.
    pub ty: String,
    /// Kind of argument to pass.
    pub kind: ArgKind,
}

/// A kernel of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// Its parameters in order.
    pub args: Vec<ArgInfo>,
    /// Required group size.
    pub required_group: Option<[u64; 3]>,
    /// Required sub-group size (`reqd_sub_group_size`).
    pub required_sub_group: Option<u32>,
    /// Whether a parameter points to volatile device memory: groups may wait for other groups' writes.
    pub(crate) waits: bool,
    /// Bytes of local memory for the kernel's variables.
    pub local_bytes: u64,
    /// Those variables.
    pub(crate) locals: Vec<LocalVariable>,
    id: FunctionId,
}

/// A variable in local memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalVariable {
    pub name: String,
    pub bytes: u64,
    /// Span of its declaration.
    pub span: Span,
}

impl KernelInfo {
    pub(crate) fn id(&self) -> FunctionId {
        self.id
    }
}

impl Program {
    /// Returns a message with its place, line and caret.
    pub(crate) fn message(&self, span: Span, kind: &str, message: &str) -> String {
        let mut out = String::new();
        self.hir().sources.describe(span, kind, message, &mut out);
        out
    }

    /// Builds a program for a device with everything that [`Target::default`] lists.
    ///
    /// # Errors
    /// The log in compiler format.
    pub fn build(source: &Source<'_>, options: &str, includes: &Includes) -> Result<Program, BuildError> {
        Program::build_for(source, options, includes, &Target::default())
    }

    /// Builds a program for a device.
    ///
    /// # Errors
    /// Same as [`Program::build`].
    pub fn build_for(
        source: &Source<'_>,
        options: &str,
        includes: &Includes,
        target: &Target,
    ) -> Result<Program, BuildError> {
        Ok(Program::new(compile_for(source, options, includes, target)?))
    }

    fn new(hir: hir::TranslationUnit) -> Program {
        let constants = Constants::new(&hir);
        let kernels = hir.functions.keys().filter_map(|id| kernel_info(&hir, *id)).collect();
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Program { number, hir, constants, kernels, lowered: Mutex::default() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the kernels in source order.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    /// Returns the kernel with a name.
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.iter().find(|k| k.name == name)
    }

    /// Returns the typed program.
    pub fn hir(&self) -> &hir::TranslationUnit {
        &self.hir
    }

    pub(crate) fn constants(&self) -> &Constants {
        &self.constants
    }

    /// Returns a kernel's code, lowered at its first launch.
    pub(crate) fn code(&self, id: FunctionId, checked: bool) -> Lowered {
        let mut lowered = self.lowered.lock().unwrap_or_else(PoisonError::into_inner);
        lowered
            .entry((id, checked))
            .or_insert_with(|| {
                let run = || lower(&self.hir, &self.constants, id, checked).map(Arc::new);
                let failed =
                    || Err((Span::default(), "cannot start a thread to generate its code".to_string()));
                with_stack(run).unwrap_or_else(failed)
            })
            .clone()
    }
}

fn kernel_info(hir: &hir::TranslationUnit, id: FunctionId) -> Option<KernelInfo> {
    let function = hir.function(id);
    let kernel = function.kernel.as_ref()?;
    let args = function.locals[..function.params].iter().map(|p| {
        let kind = match hir.types.pointee(p.ty) {
            Some(to) if to.space == Space::Local => ArgKind::Local,
            Some(to) => {
                let constant = to.space == Space::Constant;
                ArgKind::Buffer { constant, read_only: constant || to.is_const }
            }
            None => match p.ty {
                Type::Image(kind, access) => ArgKind::Image(kind, access),
                Type::Sampler => ArgKind::Sampler,
                ty => ArgKind::Value(hir.types.size(ty)),
            },
        };
        ArgInfo { name: p.name.clone(), ty: hir.types.name(p.ty), kind }
    });
    let waits = |p: &hir::Local| {
        hir.types.pointee(p.ty).is_some_and(|to| to.space == Space::Global && to.is_volatile)
    };
    let local = function.locals.iter().filter(|l| l.space == Space::Local && !matches!(l.ty, Type::Void));
    let variable =
        |l: &hir::Local| LocalVariable { name: l.name.clone(), bytes: hir.types.size(l.ty), span: l.span };
    let locals: Vec<_> = local.map(variable).collect();
    Some(KernelInfo {
        name: function.name.clone(),
        args: args.collect(),
        required_group: kernel.required_group,
        required_sub_group: kernel.required_sub_group,
        waits: function.locals[..function.params].iter().any(waits),
        local_bytes: locals.iter().map(|l| l.bytes.next_multiple_of(8)).sum(),
        locals,
        id,
    })
}
