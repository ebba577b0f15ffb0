// Manifest <-> text. Reals travel as hexadecimal bit patterns, texts that are not UTF-8 as hexadecimal bytes.
#include "engine/run/checkpoint/manifest.h"

#include <bit>
#include <charconv>
#include <set>

#include "engine/base/core/check.h"
#include "engine/base/core/error.h"
#include "engine/base/core/file.h"
#include "engine/base/core/text.h"
#include "engine/run/checkpoint/output_file.h"

namespace thinwire {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kFormat[] = "thinwire-checkpoint";
constexpr size_t kMaxManifest = size_t{1} << 30;
constexpr int kMaxDepth = 64;
constexpr std::string_view kSealOpen = ",\n\"checksum\": \"";
constexpr std::string_view kSealClose = "\"\n}\n";
constexpr size_t kSealSize = kSealOpen.size() + 32 + kSealClose.size();

std::string bits_of_real(double value) {
  return printed("%016llx", std::bit_cast<unsigned long long>(value));
}

ordered_json text_to_json(const std::string& text) {
  try {
    (void)json(text).dump();  // throws when it is not UTF-8
    return text;
  } catch (const json::exception&) {
    return {{"hex", to_hex(std::as_bytes(std::span(text)))}};
  }
}

StDtype dtype_from_name(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(StDtype::kU64); ++i) {
    if (name_of(static_cast<StDtype>(i)) == name) return static_cast<StDtype>(i);
  }
  throw_bad_data("unknown dtype \"" + name + "\"");
}

bool is_plain_file_name(const std::string& name) {
  return is_valid_tensor_name(name) && name != "." && name.find('/') == std::string::npos;
}

// get<int64_t>() would also take a real number and cast it.
int64_t integer_of(const json& value) {
  if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX)) {
    throw_bad_data("an integer is expected, not " + value.dump().substr(0, 40));
  }
  return value.get<int64_t>();
}

void read_body(const json& root, Manifest& m) {
  const auto require = [](bool ok, const std::string& what) {
    if (!ok) throw_bad_data(what);
  };
  m.step = integer_of(root.at("step"));
  m.sequence = integer_of(root.at("sequence"));
  require(m.step >= 0 && m.sequence >= 0 && m.sequence < INT64_MAX, "step or sequence out of range");
  m.job = root.at("job").get<std::string>();
  m.saved_at = root.at("saved_at").get<double>();
  m.info = root.at("info");
  m.ranks = root.contains("ranks") ? integer_of(root["ranks"]) : 1;
  require(m.ranks >= 1, "written by no rank");
  std::set<std::string> names;
  for (const json& item : root.at("files")) {
    ManifestFile file{item.at("name").get<std::string>(), static_cast<uint64_t>(integer_of(item.at("bytes"))),
                      item.at("xxh3_128").get<std::string>()};
    require(is_plain_file_name(file.name), "file name \"" + file.name + "\"");
    require(names.insert(file.name).second, "file name \"" + file.name + "\" twice");
    m.files.push_back(std::move(file));
  }
  for (const json& item : root.at("tensors")) {
    ManifestTensor t;
    t.name = item.at("name").get<std::string>();
    t.place.rows = integer_of(item.at("rows"));
    t.place.cols = integer_of(item.at("cols"));
    if (item.contains("rectangle")) {
      const json& r = item["rectangle"];
      require(r.is_array() && r.size() == 4, "tensor \"" + t.name + "\" has an impossible rectangle");
      t.place.row = integer_of(r[0]), t.place.part_rows = integer_of(r[1]);
      t.place.col = integer_of(r[2]), t.place.part_cols = integer_of(r[3]);
    } else {
      t.place.part_rows = t.place.rows, t.place.part_cols = t.place.cols;
    }
    t.place.first = integer_of(item.at("first"));
    t.place.count = integer_of(item.at("count"));
    t.dtype = dtype_from_name(item.at("dtype").get<std::string>());
    t.file = static_cast<size_t>(integer_of(item.at("file")));
    t.stored_name = item.at("stored").get<std::string>();
    t.hash = item.at("xxh3_128").get<std::string>();
    require(t.place.is_possible(), "tensor \"" + t.name + "\" has an impossible range");
    require(t.file < m.files.size(), "tensor \"" + t.name + "\" is in a file that is not listed");
    m.tensors.push_back(std::move(t));
  }
  for (const auto& [name, value] : root.at("integers").items()) m.integers[name] = integer_of(value);
  for (const auto& [name, value] : root.at("reals").items()) {
    const std::string digits = value.at("bits").get<std::string>();
    uint64_t bits = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits, 16);
    require(digits.size() == 16 && error == std::errc() && end == digits.data() + 16, "real \"" + name + "\"");
    m.reals[name] = std::bit_cast<double>(bits);
  }
  for (const auto& [name, value] : root.at("texts").items()) {
    if (value.is_string()) {
      m.texts[name] = value.get<std::string>();
    } else {
      const auto bytes = from_hex(value.at("hex").get<std::string>());
      require(bytes.has_value(), "text \"" + name + "\"");
      m.texts[name] = *bytes;
    }
  }
}

void check_seal(const std::string& path, const std::string& text) {
  if (text.size() < kSealSize)
    throw_bad_data(path + ": not a complete manifest (" + std::to_string(text.size()) + " bytes)");
  const std::string_view body(text.data(), text.size() - kSealSize);
  const std::string_view seal = std::string_view(text).substr(body.size());
  if (!seal.starts_with(kSealOpen) || !seal.ends_with(kSealClose))
    throw_bad_data(path + ": truncated or altered at its end");
  if (seal.substr(kSealOpen.size(), 32) != hash_text(body))
    throw_bad_data(path + ": its checksum does not match its content");
}

}  // namespace

std::string manifest_to_text(const Manifest& m) {
  ordered_json root;
  root["format"] = kFormat;
  root["version"] = kManifestVersion;
  root["step"] = m.step;
  root["sequence"] = m.sequence;
  root["job"] = m.job;
  root["saved_at"] = m.saved_at;
  root["ranks"] = m.ranks;
  root["info"] = m.info;
  root["integers"] = m.integers;
  root["reals"] = ordered_json::object();
  // `value` is for people; null where JSON has no number for it.
  for (const auto& [name, value] : m.reals) root["reals"][name] = {{"bits", bits_of_real(value)}, {"value", value}};
  root["texts"] = ordered_json::object();
  for (const auto& [name, value] : m.texts) root["texts"][name] = text_to_json(value);
  root["files"] = ordered_json::array();
  for (const ManifestFile& f : m.files)
    root["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"xxh3_128", f.hash}});
  root["tensors"] = ordered_json::array();
  for (const ManifestTensor& t : m.tensors) {
    const SlicePlace& p = t.place;
    ordered_json item{{"name", t.name}, {"rows", p.rows}, {"cols", p.cols}};
    if (!p.is_full_rectangle()) item["rectangle"] = {p.row, p.part_rows, p.col, p.part_cols};
    item["first"] = p.first;
    item["count"] = p.count;
    item["dtype"] = name_of(t.dtype);
    item["file"] = t.file;
    item["stored"] = t.stored_name;
    item["xxh3_128"] = t.hash;
    root["tensors"].push_back(std::move(item));
  }
  // One line per key, and one per file and tensor: readable, and a difference of two manifests is too.
  std::string text = "{\n";
  for (const auto& [key, value] : root.items()) {
    if (text.size() > 2) text += ",\n";
    text += json(key).dump() + ": ";
    if (value.is_array() && !value.empty()) {
      text += "[\n";
      for (size_t i = 0; i < value.size(); ++i) text += (i ? ",\n  " : "  ") + value[i].dump();
      text += "\n]";
    } else {
      text += value.dump();
    }
  }
  text += std::string(kSealOpen) + hash_text(text) + std::string(kSealClose);
  return text;
}

Manifest part_from_text(const std::string& path, const std::string& text) {
  check_seal(path, text);
  Manifest manifest;
  try {
    const json root = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > kMaxDepth) throw_bad_data("nested too deeply");
      return true;
    });
    if (root.at("format") != kFormat) throw_bad_data("not a checkpoint manifest of ours");
    if (const json& version = root.at("version"); version != kManifestVersion && version != 1) {
      throw_bad_data("format version " + version.dump() + ", this program reads 1 and " +
                     std::to_string(kManifestVersion));
    }
    read_body(root, manifest);
  } catch (const json::exception& e) {
    throw_bad_data(path + ": bad manifest: " + e.what());
  } catch (const Error& e) {
    throw_bad_data(path + ": bad manifest: " + e.what());
  }
  return manifest;
}

Manifest manifest_from_text(const std::string& path, const std::string& text) {
  Manifest manifest = part_from_text(path, text);
  if (const std::string fault = find_slice_fault(manifest); !fault.empty())
    throw_bad_data(path + ": bad manifest: " + fault);
  return manifest;
}

std::string find_slice_fault(const Manifest& manifest) {
  std::map<std::string_view, std::vector<const ManifestTensor*>> by_name;
  for (const ManifestTensor& t : manifest.tensors) by_name[t.name].push_back(&t);
  std::vector<const SlicePlace*> places;
  for (const auto& [name, slices] : by_name) {
    const ManifestTensor& any = *slices.front();
    const std::string tensor = "tensor \"" + std::string(name) + "\"";
    places.clear();
    for (const ManifestTensor* t : slices) {
      if (t->place.rows != any.place.rows || t->place.cols != any.place.cols || t->dtype != any.dtype)
        return tensor + " has slices of different shapes or types";
      places.push_back(&t->place);
    }
    if (const auto fault = find_cover_fault(any.place.rows, any.place.cols, places)) {
      return tensor + ": elements " + std::to_string(fault->first) + " to " + std::to_string(fault->end) +
             (fault->twice ? " are stored twice" : " are stored nowhere");
    }
  }
  return {};
}

std::string stored_name_of(const std::string& name, const SlicePlace& p) {
  if (p.is_whole_tensor()) return name;
  if (p.is_full_rectangle()) return name + "@" + std::to_string(p.first);
  return name + "@" + std::to_string(p.row) + "+" + std::to_string(p.part_rows) + "," + std::to_string(p.col) + "+" +
         std::to_string(p.part_cols) + "@" + std::to_string(p.first);
}

Manifest read_manifest(const std::string& checkpoint_dir) {
  const std::string path = checkpoint_dir + "/" + kManifestName;
  return manifest_from_text(path, read_file(path, kMaxManifest));
}

int64_t read_sequence(const std::string& checkpoint_dir) {
  const std::string path = checkpoint_dir + "/" + kManifestName, text = read_file(path, kMaxManifest);
  check_seal(path, text);
  constexpr std::string_view kLine = "\n\"sequence\": ";
  int64_t sequence = -1;
  if (const size_t at = text.find(kLine); at != std::string::npos)
    std::from_chars(text.data() + at + kLine.size(), text.data() + text.size(), sequence);
  if (sequence < 0 || sequence == INT64_MAX) throw_bad_data(path + ": bad manifest: no sequence");
  return sequence;
}

}  // namespace thinwire
