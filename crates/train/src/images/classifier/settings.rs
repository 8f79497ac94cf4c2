//! Settings that classifiers alone have; those they share with language models are in the [table](crate::config::SETTINGS).

use crate::config::Change::{Fixed, Free, Rate};
use crate::config::Check::{AtLeastOne, Fraction};
use crate::config::Group::{Data, Device, Model, Optimizer, Run};
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
        help: "Pixels that images are moved by at most, at random",
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
        help: "Parameter a of the distribution Beta(a, a) by which images are mixed in pairs; 0: none",
        ..Setting::of_images(Data, Free).without_flag().unset("by preset")
    },
    Setting {
        name: "label_smoothing",
        kind: Kind::Real,
        help: "Share of a class's probability that is spread over all classes",
        ..Setting::of_images(Optimizer, Free).without_flag().check(Fraction).unset("by preset")
    },
    Setting {
        name: "epochs",
        kind: Kind::Whole(u64::MAX),
        help: "Passes over the images, for presets of images",
        ..Setting::of_images(Run, Rate).check(AtLeastOne).unset("by preset")
    },
    Setting {
        name: "sync_batch_norm",
        kind: Kind::Bool,
        help: "Normalize batches over the images of all devices, as PyTorch's SyncBatchNorm does; slower, with the results of one device",
        ..Setting::of_images(Device, Free).switch().unset("each device normalizes its own images")
    },
];
