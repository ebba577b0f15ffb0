// The tokenizers that files describe: byte-level BPE and SentencePiece.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer/tokenizer.h"

namespace thinwire {

// Byte-level BPE (GPT-2, GPT-NeoX, Pythia, Llama 3, Qwen ...) as a `tokenizer.json` of the Hugging Face format
// describes it, or GPT-2's `vocab.json` and `merges.txt`.
//
// Read of tokenizer.json: model BPE (vocab, merges as "a b" or pairs, ignore_merges); pre_tokenizer ByteLevel
// (add_prefix_space, use_regex), alone or behind Split (Isolated, Removed; patterns: split_pattern.h) and Digits;
// normalizer null or NFC; post_processor null, ByteLevel or TemplateProcessing, which gives before_text() and
// after_text(); added_tokens (special, normalized, lstrip, rstrip). Results equal that library's, special tokens
// included; decode() writes special tokens out. `truncation` and `padding` are ignored: documents are never cut.
// Refused by name, since ids would differ: other models, normalizers, pre-tokenizers, post-processors and decoders,
// byte_fallback, dropout, subword prefixes and suffixes, single_word tokens, ids with holes or duplicates.
// The pair means what it means to Megatron-LM and GPT-NeoX: GPT-2's word pattern, and <|endoftext|> is a token that no
// text spells.
// Memory: about 200 bytes per vocabulary entry, and 4 MiB per thread that encodes. Cost: linear in the text, n log n in
// the length of a single word. Throws Error(kBadData) naming the file and the place in it.
std::unique_ptr<Tokenizer> load_byte_level_bpe(const std::string& files);

// SentencePiece models, through libsentencepiece where the build found it.
//
// Text is normalised as the model says, so decode(encode(x)) is x only up to that (spaces, compatibility forms);
// encode() adds no BOS or EOS. decode() prints control tokens (</s>) as nothing. eod() is the model's eos_id. Throws
// Error(kBadData) for a file that is not such a model, Error(kUsage) where the library was absent from the build.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& path);
bool sentencepiece_available();

}  // namespace thinwire
