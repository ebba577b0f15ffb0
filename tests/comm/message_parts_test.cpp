// Pipeline messages in parts: every tensor rank ends up with what each part's own receiver would have decoded, and the
// parts are handed on as they came, byte for byte.
#include <map>
#include <mutex>

#include "compression/codec_table.h"
#include "parallel/channel/mesh.h"
#include "parallel/sites/pp_boundary.h"
#include "tests/comm/local_group.h"
#include "tests/comm/real_codecs.h"

namespace thinwire::message_parts_test {
namespace {

struct Case {
  MeshShape shape;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  SiteRule rule;
  CommTuning tuning;
  int messages = 3;
  std::string name() const {
    return rule.codec.codec + " tp" + std::to_string(shape.tensor) + " [" + std::to_string(rows) + ", " +
           std::to_string(cols) + "] " + std::string(name_of(dtype)) + " chunk " + std::to_string(tuning.chunk_bytes) +
           " residual " + std::to_string(static_cast<int>(rule.residual.kind));
  }
};

// What one rank saw: the messages it received, and its counters.
struct Seen {
  std::vector<std::vector<char>> received;
  int64_t pp_wire = 0, pp_logical = 0, tp_wire = 0, tp_logical = 0;
};

Mesh::Compressions compressions_of(const Case& c) {
  Mesh::Compressions compressions;
  for (const Site site : {Site::kPpForward, Site::kPpBackward})
    compressions[static_cast<size_t>(site)] = {make_site_compression(site, c.rule)};
  return compressions;
}

// The same activation on all tensor ranks of a replica.
Buffer activation(const Case& c, const Coordinates& at, int message) {
  Buffer data(c.dtype, c.rows * c.cols);
  data.fill(static_cast<uint64_t>(100 * message + 7), at.data);
  return data;
}

View matrix(const Case& c, Buffer& buffer) {
  return View(buffer.view().data, c.dtype, {c.rows, c.cols});
}

// Activations go down from stage 0 to 1, or (forward false) gradients up. apart: a part goes to the rank of its number
// alone.
std::vector<Seen> run(const Case& c, bool forward, bool apart) {
  std::vector<Seen> all(static_cast<size_t>(c.shape.ranks()));
  run_ranks(c.shape.ranks(), [&](Progress& progress) {
    Mesh mesh(progress, c.shape, pretend_nodes(c.shape.ranks(), c.shape.ranks()), c.tuning);
    mesh.use_compressions(compressions_of(c));
    mesh.clock().seed = 5;
    const Coordinates at = mesh.at();
    const std::vector<int> pipeline = pipeline_ranks(c.shape, at), tensor = tensor_ranks(c.shape, at);
    const Site site = forward ? Site::kPpForward : Site::kPpBackward,
               around = forward ? Site::kTpForward : Site::kTpBackward;
    Seen& seen = all[static_cast<size_t>(mesh.rank())];
    HostStream stream;
    const bool sends = (at.pipeline == 0) == forward;
    std::vector<Buffer> data;
    for (int m = 0; m < c.messages; ++m)
      data.push_back(sends ? activation(c, at, m) : Buffer(c.dtype, c.rows * c.cols));
    std::vector<Ticket> open;
    const auto wait = [&] {
      for (Ticket& t : open) t.wait(stream);
    };
    if (apart) {
      Channel channel = mesh.channel(forward ? GroupKind::kPpForward : GroupKind::kPpBackward, site, pipeline);
      const int64_t t = c.shape.tensor, first = c.rows * at.tensor / t, end = c.rows * (at.tensor + 1) / t;
      MessageKey key{.slot = 2, .part = at.tensor, .largest_part = (c.rows + t - 1) / t * c.cols};
      for (Buffer& d : data) {
        const View part = matrix(c, d).row_range(first, end - first);
        open.push_back(sends ? channel.send(part, 1 - at.pipeline, stream, key)
                             : channel.receive(part, 1 - at.pipeline, stream, key));
      }
      wait();
    } else {
      PpBoundary pp(mesh.channel(GroupKind::kPpForward, Site::kPpForward, pipeline),
                    mesh.channel(GroupKind::kPpBackward, Site::kPpBackward, pipeline),
                    mesh.channel(GroupKind::kPpForwardParts, Site::kTpForward, tensor),
                    mesh.channel(GroupKind::kPpBackwardParts, Site::kTpBackward, tensor));
      if (sends) pp.prepare(2, 0, forward, c.rows, c.cols);
      for (Buffer& d : data) {
        const View whole = matrix(c, d);
        const MessageKey key{.slot = 2};
        if (forward)
          open.push_back(sends ? pp.send_forward(whole, stream, key) : pp.receive_forward(whole, stream, key));
        else
          open.push_back(sends ? pp.send_backward(whole, stream, key) : pp.receive_backward(whole, stream, key));
      }
      wait();
    }
    for (Buffer& d : data) seen.received.push_back(d.bytes());
    seen.pp_wire = mesh.counters(site).wire_bytes, seen.pp_logical = mesh.counters(site).logical_bytes;
    seen.tp_wire = mesh.counters(around).wire_bytes, seen.tp_logical = mesh.counters(around).logical_bytes;
  });
  return all;
}

void check(const Case& c, bool forward) {
  SCOPED_TRACE(c.name() + (forward ? " forward" : " backward"));
  const std::vector<Seen> apart = run(c, forward, true), whole = run(c, forward, false);
  const int64_t t = c.shape.tensor, bytes = c.cols * static_cast<int64_t>(size_of(c.dtype));
  for (int r = 0; r < c.shape.ranks(); ++r) {
    const Coordinates at = coordinates_of(c.shape, r);
    const Seen &mine = whole[static_cast<size_t>(r)], &reference = apart[static_cast<size_t>(r)];
    const int64_t rows = c.rows * (at.tensor + 1) / t - c.rows * at.tensor / t;
    EXPECT_EQ(mine.pp_wire, reference.pp_wire);
    EXPECT_EQ(mine.pp_logical, reference.pp_logical);
    if ((at.pipeline == 0) == forward) {
      EXPECT_EQ(mine.pp_logical, c.messages * rows * bytes);
      EXPECT_EQ(mine.tp_wire, 0);
      continue;
    }
    // Handed on to each of the others as it came from the rank of this number.
    const Seen& sender = whole[static_cast<size_t>(rank_at(c.shape, {forward ? 0 : 1, at.data, at.tensor}))];
    EXPECT_EQ(mine.pp_wire, 0);
    EXPECT_EQ(mine.tp_wire, (t - 1) * sender.pp_wire);
    EXPECT_EQ(mine.tp_logical, (t - 1) * sender.pp_logical);
    for (int m = 0; m < c.messages; ++m) {
      for (int p = 0; p < t; ++p) {
        const auto& from =
            apart[static_cast<size_t>(rank_at(c.shape, {at.pipeline, at.data, p}))].received[static_cast<size_t>(m)];
        const auto first = static_cast<size_t>(c.rows * p / t * bytes),
                   end = static_cast<size_t>(c.rows * (p + 1) / t * bytes);
        ASSERT_TRUE(std::equal(from.begin() + static_cast<ptrdiff_t>(first), from.begin() + static_cast<ptrdiff_t>(end),
                               mine.received[static_cast<size_t>(m)].begin() + static_cast<ptrdiff_t>(first)))
            << "message " << m << ", part " << p << " on rank " << r;
      }
    }
  }
}

Case random_case(std::mt19937_64& random) {
  Case c;
  c.shape = {2, 1 + static_cast<int>(random() % 2), 2 + static_cast<int>(random() % 3)};
  c.rows = static_cast<int64_t>(random() % 4 == 0 ? random() % 5 : random() % 60);
  c.cols = 1 + static_cast<int64_t>(random() % 70);
  c.dtype = random() % 2 == 0 ? DType::f32 : DType::bf16;
  c.tuning.chunk_bytes = int64_t{256} << random() % 7;
  return c;
}

TEST(MessageParts, AsTheyAre) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 24; ++i) check(random_case(random), i % 2 == 0);
  // A part of one piece beside one of two, where a message on its own would be a single transfer.
  Case c;
  c.shape = {2, 1, 2}, c.rows = 5, c.cols = 64;
  c.tuning.chunk_bytes = 512;
  check(c, true);
}

TEST(MessageParts, EveryCodec) {
  std::mt19937_64 random(2);
  for (const RealCodec& codec : real_codecs()) {
    Case c = random_case(random);
    c.rows += 8;
    c.rule.codec = codec.spec;
    const Traits traits = codec.coder()->traits();
    if (traits.contractive && !traits.lossless && random() % 2 == 0) c.rule.residual.kind = ResidualKind::kLazy;
    check(c, random() % 2 == 0);
  }
}

// Matrices of a row more or less on some ranks, with warm starts and residuals that are as large as the parts.
TEST(MessageParts, LowRank) {
  std::mt19937_64 random(3);
  for (const ResidualKind residual : {ResidualKind::kNone, ResidualKind::kLazy}) {
    for (int i = 0; i < 4; ++i) {
      Case c = random_case(random);
      c.rows += 31, c.cols += 16;
      c.rule.codec = codec_spec("low_rank", {{"rank", 3}});
      c.rule.residual.kind = residual;
      check(c, i % 2 == 0);
    }
  }
}

// Parts of one message round by chances of their own.
TEST(MessageParts, RoundByChancesOfTheirOwn) {
  Case c;
  c.shape = {2, 1, 2}, c.rows = 2, c.cols = 4096, c.messages = 1;
  c.rule.codec = codec_spec("block_int", {{"bits", 4}, {"block", 64}, {"rounding", "stochastic"}});
  std::vector<std::vector<char>> received(4);
  run_ranks(4, [&](Progress& progress) {
    Mesh mesh(progress, c.shape, pretend_nodes(4, 4));
    mesh.use_compressions(compressions_of(c));
    PpBoundary pp(mesh.channel(GroupKind::kPpForward, Site::kPpForward, pipeline_ranks(c.shape, mesh.at())), Channel(),
                  mesh.channel(GroupKind::kPpForwardParts, Site::kTpForward, tensor_ranks(c.shape, mesh.at())));
    Buffer data(c.dtype, c.rows * c.cols), row(c.dtype, c.cols);
    row.fill(9, 0);
    for (int64_t i = 0; i < data.count(); ++i) data.set(i, row.get(i % c.cols));
    HostStream stream;
    (mesh.at().pipeline == 0 ? pp.send_forward(matrix(c, data), stream) : pp.receive_forward(matrix(c, data), stream))
        .wait(stream);
    received[static_cast<size_t>(mesh.rank())] = data.bytes();
  });
  const std::vector<char>& all = received[2];
  EXPECT_EQ(all, received[3]);
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2),
                          all.begin() + static_cast<ptrdiff_t>(all.size() / 2)));
}

}  // namespace
}  // namespace thinwire::message_parts_test
