// Parts of tensors as bytes, sent to rank 0 and fitted together there.
#include "engine/run/train/gather_tensors.h"

#include <algorithm>
#include <cstring>

#include "engine/base/core/state_visitor.h"

namespace thinwire {
namespace {

struct PartHeader {
  int64_t name_bytes, rows, cols, row, col, part_cols, first, count;
};

class Collector final : public StateVisitor {
 public:
  explicit Collector(Replica& replica) : replica_(replica) {}
  void tensor(const GlobalSlice& s) override {
    std::vector<float> values(static_cast<size_t>(s.local.count()));
    if (s.local.dtype == DType::bf16) {
      std::vector<Bf16> narrow(values.size());
      replica_.read(s.local, narrow.data());
      std::transform(narrow.begin(), narrow.end(), values.begin(), [](Bf16 x) { return to_float(x); });
    } else {
      replica_.read(s.local, values.data());
    }
    append_part(parts, s, values);
  }
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  void text(const std::string&, std::string&) override {}
  std::string parts;

 private:
  Replica& replica_;
};

}  // namespace

void append_part(std::string& text, const GlobalSlice& s, std::span<const float> values) {
  const PartHeader header{static_cast<int64_t>(s.name.size()), s.rows, s.cols, s.row, s.col, s.part_cols, s.first,
                          static_cast<int64_t>(values.size())};
  text.append(reinterpret_cast<const char*>(&header), sizeof header);
  text.append(s.name);
  text.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

void PartsInto::add(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    PartHeader h;
    std::memcpy(&h, text.data() + at, sizeof h);
    at += sizeof h;
    const std::string name = text.substr(at, static_cast<size_t>(h.name_bytes));
    at += name.size();
    std::vector<float>& tensor = tensors_[name];
    std::vector<bool>& there = there_[name];
    tensor.resize(static_cast<size_t>(h.rows * h.cols));
    there.resize(tensor.size());
    for (int64_t i = 0; i < h.count; ++i) {
      const int64_t e = h.first + i;
      const int64_t to = (h.row + e / h.part_cols) * h.cols + h.col + e % h.part_cols;
      TW_CHECK(!there[static_cast<size_t>(to)], name, ": element ", to, " comes from two ranks");
      there[static_cast<size_t>(to)] = true;
      std::memcpy(&tensor[static_cast<size_t>(to)], text.data() + at + static_cast<size_t>(i) * sizeof(float),
                  sizeof(float));
    }
    at += static_cast<size_t>(h.count) * sizeof(float);
  }
}

std::map<std::string, std::vector<float>> PartsInto::finish() {
  for (const auto& [name, there] : there_)
    TW_CHECK(std::find(there.begin(), there.end(), false) == there.end(), name, ": elements that no rank has");
  return std::move(tensors_);
}

std::map<std::string, std::vector<float>> gather_tensors(Replica& replica, std::span<const View> pieces) {
  Collector collector(replica);
  replica.store().visit(collector, "", pieces, true);
  const std::vector<std::string> parts = replica.ports().control.collect(collector.parts);
  PartsInto whole;
  for (const std::string& part : parts) whole.add(part);
  return whole.finish();
}

}  // namespace thinwire
