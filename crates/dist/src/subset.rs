//! A subset of the ranks of a transport, as a transport.

use crate::{Transport, Watch};
use netcl_device::{Error, Result};
use std::sync::Arc;

/// The ranks `members` of `whole`, renumbered from 0 in that order.
pub(crate) struct Subset {
    pub whole: Arc<dyn Transport>,
    pub members: Vec<usize>,
    pub rank: usize,
}

impl Subset {
    fn member(&self, rank: usize) -> Result<usize> {
        let size = self.members.len();
        let none = || Error::internal(format!("rank {rank} of a group of {size}"));
        self.members.get(rank).copied().ok_or_else(none)
    }
}

impl Transport for Subset {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn exchange(&self, to: Option<(usize, &[u8])>, from: Option<(usize, &mut [u8])>) -> Result<()> {
        let to = to.map(|(rank, data)| Ok::<_, Error>((self.member(rank)?, data))).transpose()?;
        let from = from.map(|(rank, data)| Ok::<_, Error>((self.member(rank)?, data))).transpose()?;
        self.whole.exchange(to, from)
    }

    fn may_share_memory(&self) -> bool {
        self.whole.may_share_memory()
    }

    fn watch(&self) -> &Watch {
        self.whole.watch()
    }

    fn name(&self) -> String {
        self.whole.name()
    }
}
