// Parts of tensors as bytes, sent to rank 0 and fitted together there.
#include "engine/run/train/gather_tensors.h"

#include <algorithm>
#include <cstring>

#include "engine/base/core/check.h"
#include "engine/base/core/state_visitor.h"
#include "engine/run/checkpoint/staged_state.h"

namespace thinwire {
namespace {

struct PartHeader {
  size_t name_bytes;
  SlicePlace place;
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
    append_part(parts, s.name, place_of(s), values);
  }
  void integer(const std::string&, int64_t&) override {}
  void real(const std::string&, double&) override {}
  void text(const std::string&, std::string&) override {}
  std::string parts;

 private:
  Replica& replica_;
};

}  // namespace

void append_part(std::string& text, const std::string& name, const SlicePlace& place, std::span<const float> values) {
  const PartHeader header{name.size(), place};
  text.append(reinterpret_cast<const char*>(&header), sizeof header);
  text.append(name);
  text.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
}

void PartsInto::add(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    PartHeader h;
    std::memcpy(&h, text.data() + at, sizeof h);
    at += sizeof h;
    const std::string name = text.substr(at, h.name_bytes);
    at += name.size();
    const SlicePlace whole = SlicePlace::whole(h.place.rows, h.place.cols);
    std::vector<float>& tensor = tensors_[name];
    tensor.resize(static_cast<size_t>(whole.count));
    places_[name].push_back(h.place);
    for_each_shared_run(whole, h.place, [&](int64_t to, int64_t from, int64_t count) {
      std::memcpy(tensor.data() + to, text.data() + at + static_cast<size_t>(from) * sizeof(float),
                  static_cast<size_t>(count) * sizeof(float));
    });
    at += static_cast<size_t>(h.place.count) * sizeof(float);
  }
}

std::map<std::string, std::vector<float>> PartsInto::finish() {
  for (const auto& [name, places] : places_) {
    std::vector<const SlicePlace*> all;
    for (const SlicePlace& place : places) all.push_back(&place);
    const auto fault = find_cover_fault(places.front().rows, places.front().cols, all);
    TW_CHECK(!fault, name, ": elements ", fault->first, " to ", fault->end,
             fault->twice ? " come twice" : " come from no rank");
  }
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
