// The state of resolve(): settings in, final values out, one function per topic, and the helpers that topics share.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "engine/run/config/load_config.h"
#include "engine/run/config/rule_check.h"

namespace thinwire {

inline std::string str(int64_t n) {
  return std::to_string(n);
}

// A rule of a site's list, and where it comes from.
struct ListedRule {
  SiteRule rule;
  const WrittenRule* written = nullptr;  // nullptr: the site's own object alone
  bool of_preset = false;
};

class Resolver {
 public:
  Resolver(SettingsReader& reader, const ConfigOptions& options) : reader_(reader), options_(options) {}

  // Topics: each fills its keys in values_ and appends violations. Order matters (resolve()): batch needs layout,
  // placement and schedule need batch, and a preset may set what placement starts from.
  void model();
  void vocabulary();
  void precision();
  void layout();
  void batch();
  void tokens_for_tensor_ranks();
  void gradient_dtype();
  void preset();
  void placement();
  void communication();
  void schedule();
  // After precision, layout and schedule.
  void token_chunks();
  void data();
  void compression();
  void run(const std::string& stem);
  // Reports required keys that are missing.
  void check_required();
  // Keys that no topic filled: what was given, else the default.
  void fill_the_rest();

  ResolvedConfig take();

 private:
  // What the user gave for a key; nullptr: nothing, null, or a refused value.
  const Setting* given(const std::string& key) const;
  bool broken(const std::string& key) const { return reader_.broken().count(key) != 0; }
  // The final value so far: derived, given or default.
  nlohmann::json value(const std::string& key) const;
  // False when one of the keys has no value or a refused one: then there is nothing to compare.
  bool known(std::initializer_list<const char*> keys) const;
  int64_t integer(const std::string& key) const { return value(key).get<int64_t>(); }
  double real(const std::string& key) const { return value(key).get<double>(); }
  bool flag(const std::string& key) const { return value(key).get<bool>(); }
  std::string text(const std::string& key) const { return value(key).get<std::string>(); }
  // As the key says, else as found at start; 0: not known.
  int64_t ranks_per_node() const {
    const int64_t written = known({"ranks_per_node"}) ? integer("ranks_per_node") : 0;
    return written > 0 ? written : options_.found_ranks_per_node;
  }
  bool is(const std::string& key, const char* what) const { return known({key.c_str()}) && value(key) == what; }
  void set(const std::string& key, nlohmann::json v) { values_[key] = std::move(v); }
  void note(const std::string& key, const std::string& message) { notes_.push_back({key, message}); }
  // Notes each of `keys` that somebody gave another value than the default: nothing reads it, and why says for what
  // reason.
  void note_unread(std::initializer_list<const char*> keys, const std::string& why);
  // A violation at the first of `keys` that the user gave (else at the start of the first source), named after it.
  void fail(std::initializer_list<const char*> keys, const std::string& message);
  void refuse(const std::string& key, const std::string& message) { fail({key.c_str()}, message); }

  void tensor_cut();
  void pipeline_cut();
  void sequence_cut();
  void trace_range();
  void feed_forward();
  int64_t neox_width(int64_t whole, bool gated, bool by_default);
  struct KnownTokenizer {
    std::string name;
    int64_t ids = 0, eod = -1;  // eod: the id that ends a document, -1: none
  };
  std::optional<KnownTokenizer> tokenizer_of_other_trainers();
  void heads();
  void parse_ramp();
  void schedule_in_samples();
  void check_paths(const std::string& paths, const std::string& weights);
  void split_text();
  std::optional<KnownTokenizer> vocabulary_of(const std::string& tokenizer);
  bool weights_persist() const;
  RuleContext rule_context() const;
  std::vector<ListedRule> rules_of(Site site, const RuleContext& context) const;
  const Setting* said(Site site, const ListedRule& rule, const std::string& field) const;
  static std::vector<ListedRule> effective(std::vector<ListedRule> list);
  void select_lists(const std::function<const Setting*(const std::string&)>& setting);
  void check_site(Site site, const ListedRule& rule, const RuleContext& context);
  void sends();
  void sensitivities();

  SettingsReader& reader_;
  const ConfigOptions& options_;
  std::map<std::string, nlohmann::json> values_;
  std::vector<ConfigNote> notes_;
  Settings preset_;
  std::map<Site, std::vector<SiteRule>> rules_;
};

// Fills every used key. Violations are appended to reader.problems(); the result is meaningful only if there are none.
// `stem` names the default run directory.
ResolvedConfig resolve(SettingsReader& reader, const std::string& stem, const ConfigOptions& options);

// The plain mapping from final values to the struct that the engine reads, but for the rules of compression. All used
// keys must be present.
RunConfig to_run_config(const std::map<std::string, nlohmann::json>& values);

// How many ranks of each data-parallel group (`data` ranks, `tensor` apart) every node that it touches holds, with
// nodes of `on_node` consecutive ranks; 0: not equally many.
int64_t data_ranks_on_node(int64_t ranks, int64_t data, int64_t tensor, int64_t on_node);

// "0.3 a 0.7 b", ["0.3", "a", 0.7, "b"], "a" or ["a", "b"] as weighted prefixes. Throws std::invalid_argument with the
// reason.
std::vector<WeightedPrefix> parse_prefixes(const nlohmann::json& value);

}  // namespace thinwire
