//! Checks of a decoder's description.

use super::config::DecoderConfig;
use super::fields::MAX_SIZE;
use super::mixer::{self, MixerKind, MixerName};
use netcl_tensor::ops::route::MAX_EXPERTS;
use netcl_tensor::{Error, Result};

impl DecoderConfig {
    /// # Errors
    /// `Shape` with the name of an invalid or inconsistent size.
    pub fn check(&self) -> Result<()> {
        let mixers = self.mixers()?;
        let mut sizes = vec![
            ("number of layers", self.layers),
            ("vocabulary", self.vocab),
            ("width", self.width),
            ("context", self.context),
        ];
        sizes.extend(mixers.iter().flat_map(|mixer| mixer.sizes(self)));
        sizes.push(("width of the MLP", self.mlp.hidden));
        if let Some((name, size)) = sizes.iter().find(|(_, n)| !(1..=MAX_SIZE).contains(n)) {
            return Err(Error::shape(format!("the {name} is {size}, expected 1 to {MAX_SIZE}")));
        }
        mixers.iter().try_for_each(|mixer| mixer.check(self))?;
        if !(self.norm.eps > 0.0 && self.norm.eps.is_finite()) {
            let eps = self.norm.eps;
            return Err(Error::shape(format!("the norms' epsilon is {eps}, expected a number above 0")));
        }
        if self.mlp.gated && self.mlp.activation.gate().is_none() {
            return Err(Error::unsupported(
                "a gated MLP with tanh is not supported; SiLU, GELU and ReLU are",
            ));
        }
        self.check_experts()?;
        let mut kinds = self.kinds.iter().enumerate();
        kinds.try_for_each(|(i, kind)| mixer::of(kind.mixer).check_layer(self, i, *kind))
    }

    /// Returns the mixers that its layers have, each once.
    fn mixers(&self) -> Result<Vec<&'static dyn MixerKind>> {
        let mut names = vec![self.kind(0).mixer];
        for kind in &self.kinds {
            if !names.contains(&kind.mixer) {
                names.push(kind.mixer);
            }
        }
        let found = |name: &MixerName| {
            mixer::find(*name).ok_or_else(|| Error::unsupported(format!("unsupported mixer {name}")))
        };
        names.iter().map(found).collect()
    }

    fn check_experts(&self) -> Result<()> {
        let Some(moe) = &self.mlp.moe else {
            return match self.kinds.iter().any(|kind| kind.sparse) {
                true => Err(Error::shape("sparse layers require a mixture of experts")),
                false => Ok(()),
            };
        };
        let sizes = [
            ("number of experts", moe.experts, MAX_EXPERTS),
            ("number of experts per token", moe.top_k, moe.experts),
            ("width of an expert's MLP", moe.hidden, MAX_SIZE),
        ];
        if let Some((name, size, most)) = sizes.iter().find(|(_, n, most)| !(1..=*most).contains(n)) {
            return Err(Error::shape(format!("the {name} is {size}, expected 1 to {most}")));
        }
        if !self.mlp.gated || self.mlp.bias || self.parallel || self.family.names.experts.is_none() {
            return Err(Error::unsupported(format!(
                "experts in a {} model of this kind are not supported; supported are gated ones without biases, in blocks with consecutive parts, \
                 in families that have them",
                self.family.model_type
            )));
        }
        if !moe.balance_factor.is_finite() {
            return Err(Error::shape(format!("the balance loss has the factor {}", moe.balance_factor)));
        }
        Ok(())
    }
}
