//! Training a byte-level BPE tokenizer.

use super::{Cuts, failed};
use netcl_device::{Error, Result};
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper,
    TokenizerImpl,
    models::bpe::{BPE, BpeTrainerBuilder},
    pre_tokenizers::byte_level::ByteLevel,
};

const EOS: &str = "<|endoftext|>";

/// Returns the `tokenizer.json` of a tokenizer trained on `texts`.
pub(super) fn bpe<I>(texts: I, vocab_size: usize) -> Result<String>
where
    I: IntoIterator<Item: AsRef<str>, IntoIter: Send>,
{
    if vocab_size < 257 {
        return Err(Error::format(format!(
            "a vocabulary of {vocab_size} is too small; the 256 bytes and {EOS} need 257"
        )));
    }
    let mut pieces = texts.into_iter().flat_map(|text: I::Item| {
        let pieces: Vec<_> = Cuts::Words.pieces(text.as_ref()).map(str::to_owned).collect();
        pieces
    });
    // All tokens except the first 257 occur in the text, so its length limits their number and the allocation. Only the text needed to determine this
    // is read ahead. The rest is counted as a stream, and only distinct words are kept in memory.
    let (mut ahead, mut most) = (Vec::new(), 257usize);
    while (ahead.is_empty() || most < vocab_size)
        && let Some(piece) = pieces.next()
    {
        most = most.saturating_add(piece.len());
        ahead.push(piece);
    }
    if ahead.is_empty() {
        return Err(Error::format("a tokenizer needs text, but the text is empty"));
    }
    let vocab_size = vocab_size.min(most);
    let bytes = ByteLevel::new(false, true, true);
    let mut tokenizer: TokenizerImpl<
        BPE,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    > = TokenizerImpl::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(bytes)).with_post_processor(Some(bytes)).with_decoder(Some(bytes));
    let mut trainer = BpeTrainerBuilder::new()
        .vocab_size(vocab_size)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(EOS, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut trainer, ahead.into_iter().chain(pieces)).map_err(|e| failed("training", &e))?;
    // The model is wrapped so that its type is written to the file.
    let mut whole = tokenizers::Tokenizer::new(ModelWrapper::BPE(tokenizer.get_model().clone()));
    whole.with_pre_tokenizer(Some(bytes)).with_post_processor(Some(bytes)).with_decoder(Some(bytes));
    whole.add_special_tokens([AddedToken::from(EOS, true)]).map_err(|e| failed("training", &e))?;
    whole.to_string(true).map_err(|e| failed("writing", &e))
}
