//! Settings that only classifiers have; those they share with language models are in the [table](crate::config::SETTINGS).

use crate::config::Change::{Fixed, Free};
use crate::config::Check::Fraction;
use crate::config::Group::{Data, Device, Model, Optimizer};
use crate::config::{Kind, Setting};

/// The rows, with the keys of [`ClassifierConfig`](super::ClassifierConfig).
pub static SETTINGS: &[Setting] = &[
    Setting {
        name: "network",
        help: "Network of a classifier",
        ..Setting::of_images(Model, Fixed).without_flag().unset("by preset")
    },
    Setting {
        name: "shift",
        kind: Kind::Whole(u64::MAX),
        help: "Maximum random shift of images, in pixels",
        ..Setting::of_images(Data, Free).without_flag().unset("by preset")
    },
    Setting {
        name: "mirror",
        kind: Kind::Bool,
        help: "Mirror images at random",
        ..Setting::of_images(Data, Free).without_flag().unset("by preset")
    },
    Setting {
        name: "mixup",
        kind: Kind::Real,
        help: "Parameter a of mixup, which mixes pairs of images with shares drawn from Beta(a, a); 0: none",
        ..Setting::of_images(Data, Free).without_flag().unset("by preset")
    },
    Setting {
        name: "label_smoothing",
        kind: Kind::Real,
        help: "Label smoothing: share of a class's probability that is spread over all classes",
        ..Setting::of_images(Optimizer, Free).without_flag().check(Fraction).unset("by preset")
    },
    Setting {
        name: "sync_batch_norm",
        kind: Kind::Bool,
        help: "Normalize over the images of all devices (SyncBatchNorm), as on one device; slower",
        ..Setting::of_images(Device, Free).switch().unset("each device normalizes its own images")
    },
];
