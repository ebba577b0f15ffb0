// Takes command lines of Megatron-LM apart, with the shell's own rules for words.
#include "engine/run/config/megatron_args.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/core/error.h"
#include "engine/run/config/json_text.h"
#include "engine/run/config/key_table.h"

namespace thinwire {
namespace {

constexpr const char* kWarmUps[] = {"lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction"};

bool gives(const MegatronFlag& flag, const std::string& key) {
  return flag.override.starts_with(key + "=");
}

bool is_flag(const std::string& word) {
  return word.size() > 2 && word.compare(0, 2, "--") == 0;
}

// As Megatron's own checks of its arguments do. A 0 is a default that somebody wrote down, but not of the fraction,
// which is none by default.
void refuse_contradictions(const std::vector<MegatronFlag>& flags) {
  constexpr std::pair<const char*, const char*> kPairs[] = {{"fp16", "bf16"},
                                                            {kWarmUps[0], kWarmUps[1]},
                                                            {kWarmUps[0], kWarmUps[2]},
                                                            {kWarmUps[1], kWarmUps[2]},
                                                            {"lr_decay_iters", "lr_decay_samples"},
                                                            {"train_iters", "train_samples"}};
  const auto given = [&](const char* key) {
    const bool zero_counts = key == kWarmUps[2];
    return std::find_if(flags.begin(), flags.end(), [&](const MegatronFlag& f) {
      return gives(f, key) && (zero_counts || !f.override.ends_with("=0"));
    });
  };
  for (const auto& [a, b] : kPairs)
    if (const auto one = given(a), other = given(b); one != flags.end() && other != flags.end())
      throw_bad_config(one->spelled + " and " + other->spelled + " contradict each other: give one of them");
}

bool is_json(const std::string& word) {
  return parse_json_text(word).problems.empty();
}

// As JSON where it is a number, a boolean or a list, else as a string.
nlohmann::json value_of(const std::string& word) {
  const JsonText parsed = parse_json_text(word);
  if (parsed.problems.empty() && parsed.root.kind != JsonTree::Kind::kNull) return to_json(parsed.root);
  // Megatron's argparse takes what Python's float() does: "1." and ".001".
  char* end = nullptr;
  const double number = std::strtod(word.c_str(), &end);
  const bool digits = !word.empty() && word.find_first_not_of("0123456789.eE+-") == std::string::npos;
  if (digits && end == word.c_str() + word.size()) return number;
  return word;
}

}  // namespace

std::vector<std::string> shell_words(const std::string& text) {
  std::string line, all;
  for (std::istringstream lines(text); std::getline(lines, line);) {
    while (!line.empty() && line.back() == '\r') line.pop_back();
    if (!line.empty() && line.back() == '\\') line.pop_back();
    all += line + "\n";
  }
  // Not by wordexp(), which would also look for files: `/*/*/*/*` in a file from elsewhere is work without end.
  std::vector<std::string> words;
  std::string word;
  bool inside = false;  // of a word, which may be empty: ''
  char quote = '\0';
  for (size_t i = 0; i < all.size(); ++i) {
    const char c = all[i];
    const auto in_line = [&] {
      return " in line " + std::to_string(1 + std::count(all.begin(), all.begin() + i, '\n'));
    };
    if (quote == '\'') {
      c == '\'' ? void(quote = '\0') : word.push_back(c);
    } else if (c == '\\' && i + 1 < all.size()) {
      const char next = all[++i];
      if (quote == '"' && next != '"' && next != '\\' && next != '`' && next != '$') word.push_back('\\');
      word.push_back(next), inside = true;
    } else if (c == '#' && quote == '\0' && !inside) {
      i = all.find('\n', i);  // a comment
    } else if (c == '$') {
      const size_t end = all.find_first_of(" \t\n\"'/,", i);
      throw_bad_config("holds a shell variable (" + all.substr(i, end - i) + in_line() +
                       "): write its value; the file is read, not run");
    } else if (c == '`' || (quote == '\0' && std::strchr("|&;<>(){}", c) != nullptr && c != '\0')) {
      throw_bad_config("holds a command or one of the characters | & ; < > ( ) { } outside of quotes" + in_line() +
                       ": give words only, such as --num-layers 12");
    } else if (quote == '"') {
      c == '"' ? void(quote = '\0') : word.push_back(c);
    } else if (c == '"' || c == '\'') {
      quote = c, inside = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      if (inside) words.push_back(word);
      word.clear(), inside = false;
    } else if (c == '~' && !inside) {
      throw_bad_config("holds a home directory (~" + in_line() + "): write its path; the file is read, not run");
    } else {
      word.push_back(c), inside = true;
    }
  }
  if (quote != '\0') throw_bad_config("a quote is not closed");
  return words;
}

std::vector<MegatronFlag> megatron_flags(const std::vector<std::string>& words) {
  std::vector<MegatronFlag> flags;
  for (size_t i = 0; i < words.size();) {
    std::string flag = words[i];
    if (!is_flag(flag)) throw_bad_config("\"" + flag + "\" belongs to no flag: a flag begins with --");
    std::vector<std::string> values;
    if (const size_t equals = flag.find('='); equals != std::string::npos) {
      values.push_back(flag.substr(equals + 1));
      flag.resize(equals);
    }
    for (++i; i < words.size() && !is_flag(words[i]); ++i) values.push_back(words[i]);
    nlohmann::json value = true;
    if (values.size() == 1) value = value_of(values.front());
    if (values.size() > 1) {
      value = nlohmann::json::array();
      for (const std::string& v : values) value.push_back(value_of(v));
    }
    const std::string key = normalised_key(flag.substr(2));
    // A text, and a number as JSON has it, go on as they are spelled, so that a path that looks like a number (1.10)
    // stays a path.
    const bool own = values.size() == 1 && (value.is_string() || (value.is_number() && is_json(values.front())));
    std::string text;
    try {
      text = own ? values.front() : value.dump();
    } catch (const nlohmann::json::exception&) {
      throw_bad_config("the values of " + flag + " are not UTF-8");
    }
    flags.push_back({flag, key + "=" + text});
  }
  refuse_contradictions(flags);
  return flags;
}

bool is_idle_warm_up(const MegatronFlag& flag, const std::vector<MegatronFlag>& all) {
  if (flag.override != "lr_warmup_iters=0" && flag.override != "lr_warmup_samples=0") return false;
  return std::any_of(all.begin(), all.end(), [&](const MegatronFlag& other) {
    return !other.override.ends_with("=0") &&
           std::any_of(std::begin(kWarmUps), std::end(kWarmUps),
                       [&](const char* key) { return gives(other, key) && !gives(flag, key); });
  });
}

bool reads_query_groups(const std::vector<MegatronFlag>& all) {
  return std::any_of(all.begin(), all.end(),
                     [](const MegatronFlag& flag) { return flag.override == "group_query_attention=true"; });
}

std::string megatron_defaults(const std::vector<MegatronFlag>& flags) {
  nlohmann::json defaults = {{"hidden_dropout", 0.1},
                             {"attention_dropout", 0.1},
                             {"weight_decay", 0.01},
                             {"norm_epsilon", 1e-5},
                             {"lr_warmup_iters", 0},
                             {"log_interval", 100},
                             {"initial_loss_scale", 4294967296.0},
                             {"lr_wsd_decay_style", "exponential"},
                             {"lr_warmup_convention", "megatron"}};
  bool fuses = true;
  for (const MegatronFlag& f : flags) {
    // The fused kernel is for gelu behind a bias. Without it gelu is the exact one.
    for (const char* other : {"swiglu=true", "no_bias_gelu_fusion=true", "disable_bias_linear=true"})
      fuses = fuses && f.override != other;
    if (f.override == "optimizer=sgd") defaults["sgd_momentum"] = 0.9;
    // Where no token is left out, the mean over micro-batches and that over tokens are the same.
    if (f.override == "eod_mask_loss=true") defaults["calculate_per_token_loss"] = false;
  }
  if (reads_query_groups(flags)) defaults["num_query_groups"] = 1;
  if (fuses) defaults["bias_gelu_fusion"] = true;
  return defaults.dump();
}

}  // namespace thinwire
