// Event files, read back by a small parser of records and protobuf fields with its own bitwise CRC.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "engine/run/trace/tensorboard_writer.h"
#include "tests/support/scratch_directory.h"

namespace thinwire::test_tensorboard_writer {
namespace {

uint32_t slow_crc(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool odd = ((crc ^ (static_cast<uint8_t>(c) >> bit)) & 1u) != 0;
      crc = (crc >> 1) ^ (odd ? 0x82f63b78u : 0u);
    }
  }
  return ~crc;
}

uint32_t slow_masked(const std::string& bytes) {
  const uint32_t c = slow_crc(bytes);
  return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

template <typename T>
T load(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  size_t at = 0;
  while (at < file.size()) {
    const auto length = load<uint64_t>(file, at);
    EXPECT_EQ(load<uint32_t>(file, at + 8), slow_masked(file.substr(at, 8)));
    const std::string data = file.substr(at + 12, length);
    EXPECT_EQ(load<uint32_t>(file, at + 12 + length), slow_masked(data));
    records.push_back(data);
    at += 12 + length + 4;
  }
  EXPECT_EQ(at, file.size());
  return records;
}

// Fields of a protobuf message by number; numbers as their raw bytes.
std::multimap<uint32_t, std::string> fields_of(const std::string& message) {
  std::multimap<uint32_t, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(message.at(at++));
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t tag = varint();
    std::string value;
    switch (tag & 7) {
      case 0: {
        const uint64_t v = varint();
        value.assign(reinterpret_cast<const char*>(&v), sizeof v);
        break;
      }
      case 1:
        value = message.substr(at, 8);
        at += 8;
        break;
      case 2: {
        const uint64_t n = varint();
        value = message.substr(at, n);
        at += n;
        break;
      }
      case 5:
        value = message.substr(at, 4);
        at += 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (tag & 7);
        return fields;
    }
    fields.emplace(static_cast<uint32_t>(tag >> 3), value);
  }
  return fields;
}

TEST(TensorboardWriter, CrcKnownAnswers) {
  EXPECT_EQ(slow_crc(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(slow_crc(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(masked_crc32c("thinwire"), slow_masked("thinwire"));
}

TEST(TensorboardWriter, ScalarsReadBack) {
  const test::Scratch scratch;
  const std::string long_tag(300, 'x');  // its length takes a two-byte varint
  std::string path;
  {
    TensorboardWriter writer(scratch.path());
    path = writer.path();
    writer.scalars(1, {{"train/loss", 3.25}, {long_tag, -1e-3}});
    writer.scalars(1'000'000'007, {{"train/loss", std::nan("")}});
    writer.scalars(5, {});
  }
  EXPECT_NE(std::filesystem::path(path).filename().string().find("tfevents"), std::string::npos);
  const auto records = records_of(test::slurp(path));
  ASSERT_EQ(records.size(), 3u);
  const auto version = fields_of(records[0]);
  EXPECT_EQ(version.find(3)->second, "brain.Event:2");
  EXPECT_GT(load<double>(version.find(1)->second, 0), 1.6e9);
  const auto first = fields_of(records[1]);
  EXPECT_EQ(load<int64_t>(first.find(2)->second, 0), 1);
  const auto summary = fields_of(first.find(5)->second);
  std::map<std::string, float> values;
  for (const auto& [field, bytes] : summary) {
    EXPECT_EQ(field, 1u);
    const auto value = fields_of(bytes);
    values[value.find(1)->second] = load<float>(value.find(2)->second, 0);
  }
  EXPECT_EQ(values.size(), 2u);
  EXPECT_EQ(values["train/loss"], 3.25f);
  EXPECT_EQ(values[long_tag], -1e-3f);
  const auto second = fields_of(records[2]);
  EXPECT_EQ(load<int64_t>(second.find(2)->second, 0), 1'000'000'007);
  const auto nan_value = fields_of(fields_of(second.find(5)->second).find(1)->second);
  EXPECT_TRUE(std::isnan(load<float>(nan_value.find(2)->second, 0)));
}

TEST(TensorboardWriter, ResumeStartsASessionInAFileOfItsOwn) {
  const test::Scratch scratch;
  const TensorboardWriter first(scratch.path()), second(scratch.path(), 41);
  EXPECT_NE(first.path(), second.path());
  const auto records = records_of(test::slurp(second.path()));
  ASSERT_EQ(records.size(), 2u);
  const auto event = fields_of(records[1]);
  EXPECT_EQ(load<int64_t>(event.find(2)->second, 0), 41);
  EXPECT_EQ(load<uint64_t>(fields_of(event.find(7)->second).find(1)->second, 0), 1u);
}

// The number, text or truth of a google.protobuf.Value, as text.
std::string value_of(const std::string& message) {
  const auto fields = fields_of(message);
  EXPECT_EQ(fields.size(), 1u);
  const auto& [field, bytes] = *fields.begin();
  if (field == 2) return std::to_string(load<double>(bytes, 0));
  if (field == 3) return bytes;
  EXPECT_EQ(field, 4u);
  return load<uint64_t>(bytes, 0) != 0 ? "true" : "false";
}

TEST(TensorboardWriter, HyperParametersAreMessagesOfThePlugin) {
  const test::Scratch scratch;
  std::string path;
  {
    TensorboardWriter writer(scratch.path());
    path = writer.path();
    writer.hyper_parameters({{"num_layers", 12},
                             {"precision", "bf16"},
                             {"compression", {{"preset", "thinwire"}, {"adapt", true}, {"dp.gradient", {{"bits", 4}}}}},
                             {"optimizer", {{"params", {{"lr", 0.25}}}}},
                             {"hidden_dropout", nullptr},
                             {"data_path", "not a number that anybody tunes"}});
    writer.ended(false);
  }
  const auto records = records_of(test::slurp(path));
  ASSERT_EQ(records.size(), 3u);
  const auto data_of = [](const std::string& record, const std::string& tag) {
    const auto value = fields_of(fields_of(fields_of(record).find(5)->second).find(1)->second);
    EXPECT_EQ(value.find(1)->second, tag);
    EXPECT_EQ(value.count(2), 0u);  // no scalar beside the tensor
    const auto tensor = fields_of(value.find(8)->second);
    EXPECT_EQ(load<uint64_t>(tensor.find(1)->second, 0), 1u);  // DT_FLOAT
    EXPECT_EQ(load<uint64_t>(fields_of(fields_of(tensor.find(2)->second).find(2)->second).find(1)->second, 0), 1u);
    EXPECT_EQ(load<float>(tensor.find(5)->second, 0), 0.0f);
    const auto plugin = fields_of(fields_of(value.find(9)->second).find(1)->second);
    EXPECT_EQ(plugin.find(1)->second, "hparams");
    return fields_of(plugin.find(2)->second);
  };
  const auto start = fields_of(data_of(records[1], "_hparams_/session_start_info").find(3)->second);
  EXPECT_GT(load<double>(start.find(5)->second, 0), 1.6e9);
  std::map<std::string, std::string> got;
  for (auto [at, end] = start.equal_range(1); at != end; ++at) {
    const auto entry = fields_of(at->second);
    got[entry.find(1)->second] = value_of(entry.find(2)->second);
  }
  const std::map<std::string, std::string> expected = {{"num_layers", "12.000000"},
                                                       {"precision", "bf16"},
                                                       {"compression.preset", "thinwire"},
                                                       {"compression.adapt", "true"},
                                                       {"optimizer.params.lr", "0.250000"}};
  EXPECT_EQ(got, expected);
  const auto end = fields_of(data_of(records[2], "_hparams_/session_end_info").find(4)->second);
  EXPECT_EQ(load<uint64_t>(end.find(1)->second, 0), 2u);  // STATUS_FAILURE
  EXPECT_GT(load<double>(end.find(2)->second, 0), 1.6e9);
}

TEST(TensorboardWriter, MissingDirectoryIsAWarningOnly) {
  const test::Scratch scratch;
  TensorboardWriter writer(scratch / "absent");
  EXPECT_NO_THROW(writer.scalars(1, {{"a", 1.0}}));
}

}  // namespace
}  // namespace thinwire::test_tensorboard_writer
