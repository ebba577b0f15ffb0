// Reads machine files, and looks rates up.
#include "engine/run/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "engine/base/ops/ops.h"
#include "engine/run/plan/json_fields.h"

namespace thinwire {
namespace {

constexpr double kHuge = 1e18, kMiB = 1 << 20;
const std::string kHadamard = "hadamard + ", kResidual = " + ";

#define TW_NAME(name, Op) #name,
constexpr std::string_view kOpNames[] = {TW_FOR_EACH_OP(TW_NAME)};
#undef TW_NAME

// {"matmul": [[work, rate], ...], ...}, or [work, rate, rate with all cores busy]; unit: of a rate in the file. An
// entry that op_time would never look up is an error.
std::map<std::string, OpRates> read_curves(const JsonTree* tree, const std::string& path, bool products, double unit,
                                           FieldErrors& errors) {
  std::map<std::string, OpRates> curves;
  if (tree == nullptr) return curves;
  for (const JsonMember& member : tree->members) {
    double before = -1.0;
    const auto number_of = [](const JsonTree& t) {
      return t.kind == JsonTree::Kind::kInt    ? static_cast<double>(t.integer)
             : t.kind == JsonTree::Kind::kReal ? t.real
                                               : -1.0;
    };
    const bool has_flops = member.key == "matmul" || member.key.starts_with("attention_");
    if (std::ranges::find(kOpNames, member.key) == std::end(kOpNames) || has_flops != products)
      errors.add(member.at, path + "." + member.key,
                 products ? "is none of matmul, attention_forward, attention_backward"
                          : "no op whose work is bytes (scripts/calibrate writes their names)");
    if (member.value.items.empty())
      errors.add(member.value.at, path + "." + member.key, "a list of [work, rate] pairs is needed");
    for (const JsonTree& point : member.value.items) {
      const bool fits = point.items.size() == 2 || point.items.size() == 3;
      const double work = fits ? number_of(point.items[0]) : -1.0, rate = fits ? number_of(point.items[1]) : -1.0;
      const double loaded = fits ? number_of(point.items.back()) : -1.0;
      if (work < 0.0 || rate < 1e-6 || loaded < 1e-6) {  // of a smaller rate times would be infinite
        errors.add(point.at, path + "." + member.key,
                   "[work, rate], or [work, rate, rate with all cores busy], of positive numbers is needed");
      } else if (work <= before) {
        errors.add(point.at, path + "." + member.key, "work has to grow from pair to pair");
      } else {
        curves[member.key].alone.add(work, rate * unit);
        if (point.items.size() == 3) curves[member.key].loaded.add(work, loaded * unit);
        before = work;
      }
    }
  }
  return curves;
}

MessageCosts read_costs(const JsonTree* tree, const std::string& path, FieldErrors& errors) {
  MessageCosts costs;
  if (tree == nullptr) return costs;
  Fields f(*tree, path, errors);
  costs.send_message = f.number("send_us", 0.0, 0.0, 1e6) * 1e-6;
  costs.receive_message = f.number("receive_us", 0.0, 0.0, 1e6) * 1e-6;
  costs.send_byte = f.number("send_ns_per_kib", 0.0, 0.0, 1e9) * 1e-9 / 1024.0;
  costs.receive_byte = f.number("receive_ns_per_kib", 0.0, 0.0, 1e9) * 1e-9 / 1024.0;
  costs.socket_bytes = f.number("socket_kib", 0.0, 0.0, kHuge) * 1024.0;
  f.text("source", "");
  f.unknown();
  return costs;
}

FromMemory read_from_memory(const JsonTree* tree, const std::string& path, FieldErrors& errors) {
  FromMemory more;
  if (tree == nullptr) return more;
  Fields f(*tree, path, errors);
  more.encode = f.number("encode_ns_per_kib", 0.0, 0.0, 1e9) * 1e-9 / 1024.0;
  more.residual = f.number("residual_ns_per_kib", 0.0, 0.0, 1e9) * 1e-9 / 1024.0;
  more.decode = f.number("decode_ns_per_kib", 0.0, 0.0, 1e9) * 1e-9 / 1024.0;
  more.message = f.number("message_ns_per_kib", 0.0, 0.0, 1e9) * 1e-9 / 1024.0;
  f.text("source", "");
  f.unknown();
  return more;
}

CodecRates read_codec(const JsonTree& tree, const std::string& path, FieldErrors& errors) {
  Fields f(tree, path, errors);
  f.require("encode_gbytes_per_s");
  f.require("decode_gbytes_per_s");
  CodecRates rates;
  rates.encode = f.number("encode_gbytes_per_s", 1.0, 1e-6, kHuge) * 1e9;
  rates.decode = f.number("decode_gbytes_per_s", 1.0, 1e-6, kHuge) * 1e9;
  rates.call = f.number("call_us", 0.0, 0.0, 1e6) * 1e-6;
  f.text("source", "");
  f.unknown();
  return rates;
}

}  // namespace

double RateCurve::at(double amount) const {
  if (points_.size() == 1 || amount <= points_.front().first) return points_.front().second;
  if (amount >= points_.back().first) return points_.back().second;
  const auto after = std::upper_bound(points_.begin(), points_.end(), amount,
                                      [](double a, const auto& point) { return a < point.first; });
  const auto [x1, y1] = *after;
  const auto [x0, y0] = *(after - 1);
  const auto place = [](double x) { return std::log(std::max(x, 1.0)); };
  const double width = place(x1) - place(x0);
  return width > 0.0 ? y0 + (y1 - y0) * ((place(amount) - place(x0)) / width) : y1;
}

FromMemory FromMemory::of_rank(double bytes) const {
  const auto part = [&](double near) {
    return std::clamp(std::log(std::max(bytes, 1.0) / near) / std::log(64.0 * kMiB / near), 0.0, 1.0);
  };
  const double coding = part(kMiB), sending = part(4.0 * kMiB);
  return {coding * encode, coding * residual, coding * decode, sending * message};
}

OpTime Machine::op_time(const std::string& op, double op_flops, double op_bytes) const {
  const auto& curves = op_flops > 0.0 ? products : passes;
  const double amount = op_flops > 0.0 ? op_flops : op_bytes;
  OpTime time;
  const auto rates = curves.find(op);
  time.alone = rates != curves.end() ? amount / rates->second.alone.at(amount)
                                     : op_seconds + std::max(op_flops / flops, op_bytes / bytes_per_second);
  time.loaded = rates != curves.end() && !rates->second.loaded.empty() ? amount / rates->second.loaded.at(amount)
                                                                       : time.alone * loaded_slowdown;
  return time;
}

CodecRates Machine::codec(const std::string& name) const {
  if (const auto exact = codecs.find(name); exact != codecs.end()) return exact->second;
  const CodecRates* best = &any_codec;
  const bool transforms = name.starts_with(kHadamard);
  std::string bare = transforms ? name.substr(kHadamard.size()) : name;
  const size_t residual = bare.find(kResidual);
  if (residual != std::string::npos) bare.resize(residual);
  const size_t word = std::min(bare.find('('), bare.find(' '));
  size_t longest = std::min(word, bare.size()) - 1;
  for (const auto& [known, rates] : codecs) {
    const auto [a, b] = std::mismatch(known.begin(), known.end(), bare.begin(), bare.end());
    const auto alike = static_cast<size_t>(a - known.begin());
    if (alike > longest && known.find(kResidual) == std::string::npos) longest = alike, best = &rates;
  }
  CodecRates rates = *best;
  if (transforms) {
    rates.encode = 1.0 / (1.0 / rates.encode + hadamard_encode);
    rates.decode = 1.0 / (1.0 / rates.decode + hadamard_decode);
  }
  if (residual != std::string::npos) rates.encode = 1.0 / (1.0 / rates.encode + residual_encode);
  return rates;
}

Machine parse_machine(const JsonTree& tree, const std::string& path, FieldErrors& errors) {
  Fields f(tree, path, errors);
  Machine m;
  m.name = f.text("name", "");
  m.source = f.text("source", "");
  m.ranking_only = !f.boolean("calibrated", false);
  const std::string device = f.text("device", "cpu");
  if (device != "cpu" && device != "gpu") f.error("device", "\"" + device + "\" is neither cpu nor gpu");
  m.gpu = device == "gpu";
  m.cores = static_cast<int>(f.integer("cores", 0, 1, 1 << 16));
  m.loaded_slowdown = f.number("loaded_slowdown", 1.0, 1.0, 100.0);
  m.crowded_slowdown = f.number("crowded_slowdown", 1.0, 1.0, 100.0);
  m.uneven = f.number("uneven", 0.0, 0.0, 1.0);
  m.beside_plan = f.number("beside_plan_mib", m.beside_plan / kMiB, -1024.0, 1e6) * kMiB;
  f.require("gflops");
  f.require("memory_gbytes_per_s");
  m.flops = f.number("gflops", 1.0, 1e-6, kHuge) * 1e9;
  m.bytes_per_second = f.number("memory_gbytes_per_s", 1.0, 1e-6, kHuge) * 1e9;
  m.op_seconds = f.number("op_us", 0.0, 0.0, 1e6) * 1e-6;
  m.products = read_curves(f.object("products"), path + "products", true, 1e9, errors);
  m.passes = read_curves(f.object("passes"), path + "passes", false, 1e9, errors);
  if (const JsonTree* const codecs = f.object("codecs"))
    for (const JsonMember& member : codecs->members)
      m.codecs[member.key] = read_codec(member.value, path + "codecs." + member.key + ".", errors);
  for (const auto& [name, rates] : m.codecs) {
    const auto plain = m.codecs.find(name.starts_with(kHadamard) ? name.substr(kHadamard.size())
                                                                 : name.substr(0, name.find(kResidual)));
    if (plain == m.codecs.end() || plain->first == name) continue;
    const double encode = std::max(0.0, 1.0 / rates.encode - 1.0 / plain->second.encode);
    if (name.starts_with(kHadamard)) {
      m.hadamard_encode = encode;
      m.hadamard_decode = std::max(0.0, 1.0 / rates.decode - 1.0 / plain->second.decode);
    } else {
      m.residual_encode = encode;
    }
  }
  m.any_codec = {m.bytes_per_second / 4.0, m.bytes_per_second / 4.0};
  if (const JsonTree* const any = f.object("any_codec")) m.any_codec = read_codec(*any, path + "any_codec.", errors);
  m.sum_bytes_per_second = f.number("sum_gbytes_per_s", m.bytes_per_second * 1e-9 / 3.0, 1e-6, kHuge) * 1e9;
  m.network = read_costs(f.object("network"), path + "network.", errors);
  m.memory = read_costs(f.object("memory"), path + "memory.", errors);
  m.from_memory = read_from_memory(f.object("from_memory"), path + "from_memory.", errors);
  m.waiter_seconds = f.number("waiter_us", 0.0, 0.0, 1e6) * 1e-6;
  m.crowded_wake = f.number("crowded_wake_us", 0.0, 0.0, 1e6) * 1e-6;
  m.crowded_yield = f.number("crowded_yield_us", 0.0, 0.0, 1e6) * 1e-6;
  m.waiting_share = f.number("waiting_share", 0.0, 0.0, 0.9);
  m.shortest_nap = f.number("shortest_nap_us", 0.0, 0.0, 1e6) * 1e-6;
  m.longest_nap = f.number("longest_nap_us", 0.0, 0.0, 1e6) * 1e-6;
  m.poll = f.number("poll_us", 0.0, 0.0, 1e6) * 1e-6;
  for (const char* note : {"command", "machine", "fitted", "assumed", "notes"}) f.text(note, "");
  f.unknown();
  return m;
}

Machine read_machine(const std::string& file) {
  const JsonText text = read_json_file(file);
  FieldErrors errors(file);
  Machine m = parse_machine(text.root, "", errors);
  errors.finish();
  if (m.name.empty()) m.name = std::filesystem::path(file).stem().string();
  return m;
}

}  // namespace thinwire
