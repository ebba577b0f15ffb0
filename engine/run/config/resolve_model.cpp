// The resolver's topics about the model: heads, feed-forward width, positions, vocabulary, precision.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "data/tokenizer/bpe_files.h"
#include "engine/base/core/file.h"
#include "engine/run/config/check_value.h"
#include "engine/run/config/key_table.h"
#include "engine/run/config/resolver.h"

namespace thinwire {
namespace {

constexpr int64_t kMaxFeedForward = 1 << 21;  // also the bound of ffn_hidden_size
constexpr const char* kKeysOfDocuments[] = {"eod_mask_loss", "reset_attention_mask", "reset_position_ids"};

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct BpeIds {
  int64_t count = 0, eod = -1;
};

// Of a tokenizer.json or, where there are merges beside it, a vocab.json: how many ids (one more than the largest of
// the vocabulary and the added tokens), and the one that ends a document.
BpeIds ids_of_bpe(const BpeFiles& files) {
  const nlohmann::json file = nlohmann::json::parse(read_file(files.vocab, 256 << 20));
  const nlohmann::json& vocab = files.merges.empty() ? file.at("model").at("vocab") : file;
  const nlohmann::json added = files.merges.empty() ? file.value("added_tokens", nlohmann::json()) : nlohmann::json();
  BpeIds ids;
  for (const auto& [token, id] : vocab.items()) ids.count = std::max(ids.count, id.get<int64_t>() + 1);
  for (const auto& token : added) ids.count = std::max(ids.count, token.at("id").get<int64_t>() + 1);
  for (const char* name : kEndsOfDocument)
    for (const auto& token : added)
      if (ids.eod < 0 && token.at("content") == name) ids.eod = token.at("id").get<int64_t>();
  if (ids.eod < 0) ids.eod = vocab.value(kEndInVocab, int64_t{-1});
  return ids;
}

}  // namespace

void Resolver::heads() {
  if (known({"num_attention_heads"}) && value("num_kv_heads").is_null() && !broken("num_kv_heads"))
    set("num_kv_heads", integer("num_attention_heads"));
  if (known({"num_attention_heads", "num_kv_heads"}) && integer("num_attention_heads") % integer("num_kv_heads") != 0) {
    fail({"num_kv_heads", "num_attention_heads"}, "num_kv_heads " + std::to_string(integer("num_kv_heads")) +
                                                      " must divide num_attention_heads " +
                                                      std::to_string(integer("num_attention_heads")));
  }
  if (known({"hidden_size", "num_attention_heads"}) && value("head_dim").is_null() && !broken("head_dim")) {
    const int64_t hidden = integer("hidden_size"), heads = integer("num_attention_heads");
    if (hidden % heads != 0) {
      fail({"hidden_size", "num_attention_heads"}, "num_attention_heads " + std::to_string(heads) +
                                                       " must divide hidden_size " + std::to_string(hidden) +
                                                       " (or give head_dim)");
    } else {
      set("head_dim", hidden / heads);
    }
  }
  if (is("pos_emb", "rotary") && known({"head_dim", "rotary_pct"})) {
    const int64_t rotated = static_cast<int64_t>(static_cast<double>(integer("head_dim")) * real("rotary_pct") + 1e-6);
    if (rotated < 2 || rotated % 2 != 0) {
      fail({"rotary_pct", "head_dim", "hidden_size", "num_attention_heads"},
           "rotary positions turn pairs: head_dim " + std::to_string(integer("head_dim")) + " * rotary_pct gives " +
               std::to_string(rotated) + " rotated elements, which must be even and at least 2");
    }
  }
}

void Resolver::feed_forward() {
  const Setting* type = given("mlp_type");
  const bool llama = type != nullptr && type->value == "llama";
  if (llama) {
    if (given("activation") != nullptr && !is("activation", "silu") && !is("activation", "swiglu"))
      fail({"mlp_type"}, "mlp_type llama is gated: activation must be silu or swiglu");
    set("activation", "swiglu");
    if (given("mlp_multiple_of") == nullptr && !broken("mlp_multiple_of")) set("mlp_multiple_of", 256);
    if (given("use_bias_in_mlp") == nullptr && !broken("use_bias_in_mlp")) set("use_bias_in_mlp", false);
  } else if (is("activation", "silu")) {
    fail({"activation"}, "silu stands only together with mlp_type llama; the gated activation is called swiglu");
  }
  if (is("activation", "swiglu") && known({"bias_gelu_fusion"}) && flag("bias_gelu_fusion"))
    fail({"bias_gelu_fusion", "activation"}, "chooses the kind of gelu, but activation is swiglu");
  if (!known({"hidden_size", "mlp_multiple_of"}) || broken("ffn_hidden_size") || broken("intermediate_size") ||
      broken("expansion_factor"))
    return;
  const int64_t hidden = integer("hidden_size"), multiple = integer("mlp_multiple_of");
  const bool gated = is("activation", "swiglu"), whole_given = !value("intermediate_size").is_null();
  const double factor = value("expansion_factor").is_null() ? 4.0 : real("expansion_factor");
  const int64_t whole =
      whole_given ? integer("intermediate_size") : static_cast<int64_t>(factor * static_cast<double>(hidden));
  const bool by_default = !whole_given && value("expansion_factor").is_null();
  int64_t width = 0;
  if (!value("ffn_hidden_size").is_null()) {
    width = integer("ffn_hidden_size");
  } else if (llama) {
    // Two thirds keep three matrices as large as two would be.
    width = whole_given ? whole : round_up(2 * whole / 3, multiple);
  } else if (gated && by_default && normalised_key(given("activation")->spelled) == "swiglu") {
    width = std::max<int64_t>(1, 2 * whole / 3 / 64 * 64);  // Megatron's --swiglu without --ffn-hidden-size
  } else {
    width = neox_width(whole, gated, by_default);
    if (width < 0) return;
  }
  if (width < 1)
    return fail({"expansion_factor", "hidden_size"}, "makes the feed-forward part narrower than one element");
  if (width > kMaxFeedForward)
    return fail({"expansion_factor", "intermediate_size", "mlp_multiple_of"},
                "makes the feed-forward part " + std::to_string(width) + " wide (at most 2097152)");
  if (gated && value("ffn_hidden_size").is_null())
    note(whole_given ? "intermediate_size" : "activation",
         "gate and up of the feed-forward part are " + std::to_string(width) + " wide each (ffn_hidden_size)");
  set("ffn_hidden_size", width);
  set("intermediate_size", nullptr);
  set("expansion_factor", nullptr);
}

// NeoX's ParallelMLP: `whole` is what intermediate_size says, the width of a part without a gate. With a gate the first
// projection has two thirds of that, for gate and up together, the second takes half; each is rounded up by itself.
// Where the two do not fit, a number that the user gave is refused (-1), a default goes up to the next that does.
int64_t Resolver::neox_width(int64_t whole, bool gated, bool by_default) {
  const int64_t multiple = integer("mlp_multiple_of");
  if (!gated) return round_up(whole, 2 * multiple);
  const auto first = [&](int64_t n) { return round_up(2 * n / 3, 2 * multiple); };
  const auto second = [&](int64_t n) { return round_up(2 * n / 3 / 2, multiple); };
  int64_t fits = whole;
  while (first(fits) != 2 * second(fits)) ++fits;
  if (fits == whole || by_default) return second(fits);
  fail({"intermediate_size", "expansion_factor", "hidden_size"},
       "a width of " + std::to_string(whole) + " gives NeoX a first projection of " + std::to_string(first(whole)) +
           " columns for gate and up and a second one that takes " + std::to_string(second(whole)) +
           ", which do not fit each other; intermediate_size " + std::to_string(fits) +
           " fits (or say ffn_hidden_size " + std::to_string(second(fits)) + ", the width of each)");
  return -1;
}

void Resolver::model() {
  heads();
  feed_forward();
  if (known({"seq_length"}) && !broken("max_position_embeddings")) {
    const int64_t length = integer("seq_length");
    if (value("max_position_embeddings").is_null()) set("max_position_embeddings", length);
    const int64_t positions = integer("max_position_embeddings");
    if (length > positions && is("pos_emb", "learned")) {
      fail({"max_position_embeddings", "seq_length"},
           "seq_length " + std::to_string(length) +
               " needs a learned position table of that many rows; max_position_embeddings is " +
               std::to_string(positions));
    } else if (length > positions) {
      note("max_position_embeddings", "raised to seq_length: positions are not learned");
      set("max_position_embeddings", length);
    }
  }
  if (flag("use_rope_scaling") && !(real("rope_high_freq_factor") > real("rope_low_freq_factor")))
    fail({"rope_high_freq_factor", "rope_low_freq_factor"}, "the first must be more than the second");
  if (flag("use_rope_scaling") && known({"pos_emb"}) && !is("pos_emb", "rotary"))
    fail({"use_rope_scaling", "pos_emb"},
         "scales rotary positions, but pos_emb is " + text("pos_emb") + ": say pos_emb rotary, or leave it out");
  for (const char* key : {"rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor",
                          "rope_original_max_position_embeddings"})
    if (!flag("use_rope_scaling") && given(key) != nullptr &&
        value(key) != key_table().default_of(*key_table().find(key)))
      refuse(key, "has no effect without use_rope_scaling: say use_rope_scaling true, or leave it out");
  for (const auto& [norm, name] : {std::pair("rmsnorm", "RMSNorm"), std::pair("non_parametric_layernorm", "this norm")})
    if (is("norm", norm) && given("use_bias_in_norms") != nullptr && flag("use_bias_in_norms"))
      note("use_bias_in_norms", std::string(name) + " has no shift");
  // norm_epsilon says both.
  const bool rms = is("norm", "rmsnorm");
  const char *read = rms ? "rms_norm_epsilon" : "layernorm_epsilon",
             *unread = rms ? "layernorm_epsilon" : "rms_norm_epsilon";
  if (known({"norm", read, unread}) && value(read) != value(unread)) note_unread({unread}, "norm is " + text("norm"));
  if (known({"pos_emb"}) && !is("pos_emb", "rotary"))
    note_unread({"rotary_pct", "rotary_emb_base"}, "pos_emb is " + text("pos_emb"));
}

std::optional<Resolver::KnownTokenizer> Resolver::vocabulary_of(const std::string& tokenizer) {
  if (tokenizer == "byte") return KnownTokenizer{tokenizer, 256, 256};
  if (tokenizer.rfind("bpe:", 0) == 0) {
    try {
      const BpeIds ids = ids_of_bpe(bpe_files(tokenizer.substr(4)));
      return KnownTokenizer{tokenizer, ids.count, ids.eod};
    } catch (const std::exception& e) {
      note("tokenizer", std::string("cannot be read for vocab_size and eod_token: ") + e.what());
    }
  }
  return std::nullopt;
}

// NeoX's and Megatron's words: a kind and its files. A file that is not there (NeoX's local_setup.yml names one that
// few have) leaves the size of the tokenizer that the kind stands for.
std::optional<Resolver::KnownTokenizer> Resolver::tokenizer_of_other_trainers() {
  const Setting* type = given("tokenizer_type");
  const Setting* file = given("vocab_file");
  if (type == nullptr && file == nullptr) return std::nullopt;
  const std::string kind = type == nullptr ? "GPT2BPETokenizer" : type->value.get<std::string>();
  const std::string path = file == nullptr ? "" : file->value.get<std::string>();
  const Setting* merges = given("merge_file");
  const std::string merges_path = merges == nullptr ? "" : merges->value.get<std::string>();
  std::optional<KnownTokenizer> stands_for;
  if (kind == "GPT2BPETokenizer" || kind == "HFGPT2Tokenizer" || kind == "HFGPT2TokenizerFast")
    stands_for = {"GPT-2's tokenizer", 50257, 50256};
  else if (kind == "HFTokenizer")
    stands_for = {"the 20B tokenizer", 50277, 0};
  else if (kind == "SPMTokenizer" || kind == "Llama2Tokenizer")
    stands_for = {"Llama's tokenizer", 32000, 2};
  else if (kind == "CharLevelTokenizer")
    stands_for = {"single characters", 512, 0};
  if (!path.empty() && (kind == "HFTokenizer" || kind == "HuggingFaceTokenizer"))
    set("tokenizer", "bpe:" + path);
  else if (!path.empty() && (kind == "SPMTokenizer" || kind == "SentencePieceTokenizer" || kind == "Llama2Tokenizer" ||
                             kind == "GPTSentencePieceTokenizer"))
    set("tokenizer", "sentencepiece:" + path);
  else if (path.ends_with(".json") && !merges_path.empty() && kind == "GPT2BPETokenizer")
    set("tokenizer", "bpe:" + path + "," + merges_path);
  else if (type != nullptr)
    note("tokenizer_type", "is used only for the size of the vocabulary");
  return stands_for;
}

void Resolver::vocabulary() {
  if (broken("tokenizer") || broken("vocab_size") || broken("tokenizer_type")) return;
  std::optional<KnownTokenizer> assumed;
  if (value("tokenizer").is_null()) {
    assumed = tokenizer_of_other_trainers();
  } else {
    const std::string spec = text("tokenizer");
    const bool good = spec == "byte" || (spec.rfind("bpe:", 0) == 0 && spec.size() > 4) ||
                      (spec.rfind("sentencepiece:", 0) == 0 && spec.size() > 14);
    if (!good)
      return fail({"tokenizer"},
                  shown(spec) +
                      " is not a tokenizer (allowed: byte | bpe:FILE | sentencepiece:FILE, and bpe:VOCAB.json,MERGES)");
  }
  const std::string tokenizer = value("tokenizer").is_null() ? "" : text("tokenizer");
  const Setting* const type = given("tokenizer_type");
  const bool no_tokenizer = tokenizer.empty() && type != nullptr && type->value == "NullTokenizer";
  const bool sized = !value("vocab_size").is_null();
  const bool eod_sought = given("eod_token") == nullptr &&
                          std::any_of(std::begin(kKeysOfDocuments), std::end(kKeysOfDocuments), [&](const char* key) {
                            return known({key, "eod_token"}) && flag(key);
                          });
  const auto read = tokenizer.empty() || (sized && !eod_sought) ? std::nullopt : vocabulary_of(tokenizer);
  if (!sized) {
    if (read && read->ids > 0) {
      set("vocab_size", read->ids);
    } else if (assumed) {
      set("vocab_size", assumed->ids);
      note("vocab_size", "not given; taken as the " + std::to_string(assumed->ids) + " ids of " + assumed->name);
    } else if (!tokenizer.empty()) {
      return fail({"vocab_size", "tokenizer"},
                  "missing, and the tokenizer " + shown(tokenizer) + " cannot be read for it");
    } else {
      const std::string unknown =
          type != nullptr ? ", and tokenizer_type " + shown(type->value) + " stands for no size" : "";
      return fail({"vocab_size"},
                  "missing" + unknown + ": give it, or a tokenizer (byte | bpe:FILE | sentencepiece:FILE)");
    }
  } else if (no_tokenizer) {
    set("vocab_size", integer("vocab_size") + 1);
    note("vocab_size", "taken as " + std::to_string(integer("vocab_size")) +
                           ": Megatron's NullTokenizer adds an id, the end of a document");
  } else if (tokenizer == "byte" && integer("vocab_size") < 256) {
    fail({"vocab_size", "tokenizer"},
         "the byte tokenizer has 256 ids, vocab_size is " + std::to_string(integer("vocab_size")));
  }
  if (const int64_t size = integer("vocab_size"); eod_sought) {
    // A file that is not there stands for the kind's own ids only where their number is the same.
    const int64_t end = no_tokenizer                      ? size - 1
                        : read                            ? read->eod
                        : assumed && assumed->ids == size ? assumed->eod
                                                          : -1;
    if (end >= 0 && end < size) {
      set("eod_token", end);
      note("eod_token", "not given; taken as " + std::to_string(end) + ", which ends a document in this tokenizer");
    }
  }
  if (known({"eod_token", "vocab_size"}) && integer("eod_token") >= integer("vocab_size"))
    fail({"eod_token", "vocab_size"}, "eod_token " + std::to_string(integer("eod_token")) +
                                          " is not below vocab_size " + std::to_string(integer("vocab_size")));
  for (const char* key : kKeysOfDocuments)
    if (known({key, "eod_token"}) && flag(key) && integer("eod_token") < 0)
      fail({key}, "needs eod_token: the id that ends a document");
  if (known({"reset_position_ids", "reset_attention_mask", "pos_emb"}) && flag("reset_position_ids") &&
      !flag("reset_attention_mask") && is("pos_emb", "rotary"))
    note("reset_position_ids",
         "resets rotary positions, too: tokens see other documents at other distances (Megatron and NeoX reset learned "
         "positions alone)");
}

void Resolver::precision() {
  if (known({"fp16.min_loss_scale", "fp16.initial_scale_power", "fp16.loss_scale"}) && is("precision", "fp16")) {
    const double fixed = real("fp16.loss_scale");
    const double first = fixed > 0 ? fixed : std::ldexp(1.0, static_cast<int>(integer("fp16.initial_scale_power")));
    if (fixed == 0 && first < real("fp16.min_loss_scale"))
      fail({"fp16.min_loss_scale", "fp16.initial_scale_power"},
           "is above the initial scale 2^" + std::to_string(integer("fp16.initial_scale_power")));
  }
  if (known({"precision"}) && !is("precision", "fp16"))
    note_unread({"fp16.loss_scale", "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis",
                 "fp16.min_loss_scale"},
                "precision is " + text("precision"));
  if (known({"fp8_format", "precision", "device"}) && is("fp8_format", "hybrid")) {
    if (!is("precision", "bf16")) fail({"fp8_format", "precision"}, "hybrid goes with precision bf16");
    if (!is("device", "cuda")) fail({"fp8_format", "device"}, "hybrid needs device cuda");
  }
  if (known({"attention_dropout", "num_attention_heads", "seq_length"}) && real("attention_dropout") > 0.0 &&
      real("num_attention_heads") * real("seq_length") * real("seq_length") > 0x1p50)
    fail({"attention_dropout", "seq_length"},
         "num_attention_heads * seq_length^2 is more than 2^50: heads would drop the same; say attention_dropout 0");
  if (given("optimizer.params.betas") != nullptr && value("optimizer.params.betas").size() != 2)
    fail({"optimizer.params.betas"}, "must hold two numbers");
}

}  // namespace thinwire
