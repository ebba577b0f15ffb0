// Huffman code lengths by two queues, cut to the limit; canonical codes.
#include "compression/codecs/huffman.h"

#include <algorithm>

namespace thinwire {

std::array<uint32_t, 256> huffman_codes(const HuffmanLengths& lengths) {
  uint32_t next[kHuffmanBits + 2] = {};
  for (const uint8_t length : lengths) ++next[length + 1];
  next[1] = 0;
  for (int length = 2; length <= kHuffmanBits; ++length) next[length] = (next[length] + next[length - 1]) << 1;
  std::array<uint32_t, 256> codes{};
  for (size_t s = 0; s < 256; ++s) {
    const uint32_t length = lengths[s];
    if (length == 0) continue;
    const uint32_t code = next[length]++;
    uint32_t turned = 0;
    for (uint32_t i = 0; i < length; ++i) turned |= (code >> i & 1u) << (length - 1 - i);
    codes[s] = turned | length << 16;
  }
  return codes;
}

HuffmanLengths huffman_lengths(const std::array<uint32_t, 256>& counts) {
  struct Node {
    uint64_t weight;
    int parent;
  };
  std::array<uint8_t, 256> order;
  int leaves = 0;
  for (int s = 0; s < 256; ++s)
    if (counts[static_cast<size_t>(s)] > 0) order[static_cast<size_t>(leaves++)] = static_cast<uint8_t>(s);
  std::sort(order.begin(), order.begin() + leaves,
            [&](uint8_t a, uint8_t b) { return counts[a] != counts[b] ? counts[a] < counts[b] : a < b; });
  // Leaves in rising order and inner nodes, made in rising order: the two lightest are at the heads of two queues.
  std::array<Node, 511> nodes;
  for (int i = 0; i < leaves; ++i) nodes[static_cast<size_t>(i)] = {counts[order[static_cast<size_t>(i)]], 0};
  int leaf = 0, inner = leaves;
  for (int made = leaves; made < 2 * leaves - 1; ++made) {
    uint64_t weight = 0;
    for (int k = 0; k < 2; ++k) {
      const bool take_leaf = leaf < leaves && (inner == made || nodes[static_cast<size_t>(leaf)].weight <=
                                                                    nodes[static_cast<size_t>(inner)].weight);
      Node& node = nodes[static_cast<size_t>(take_leaf ? leaf++ : inner++)];
      node.parent = made;
      weight += node.weight;
    }
    nodes[static_cast<size_t>(made)] = {weight, 0};
  }
  std::array<uint16_t, 511> depth{};
  for (int i = 2 * leaves - 3; i >= 0; --i)
    depth[static_cast<size_t>(i)] =
        static_cast<uint16_t>(depth[static_cast<size_t>(nodes[static_cast<size_t>(i)].parent)] + 1);

  // Cut to the limit, then lengthen the rarest codes until they fit, then shorten where room was left. One code takes
  // `share` of the table; what is missing is a multiple of the smallest share, so the last loop ends with none.
  HuffmanLengths lengths{};
  const auto share = [&](int i) { return 1 << (kHuffmanBits - lengths[order[static_cast<size_t>(i)]]); };
  int room = 1 << kHuffmanBits;
  for (int i = 0; i < leaves; ++i) {
    lengths[order[static_cast<size_t>(i)]] =
        static_cast<uint8_t>(std::min<int>(depth[static_cast<size_t>(i)], kHuffmanBits));
    room -= share(i);
  }
  while (room < 0) {
    int longest = -1;
    for (int i = 0; i < leaves; ++i)
      if (share(i) > 1 && (longest < 0 || share(i) < share(longest))) longest = i;
    room += share(longest) / 2;
    ++lengths[order[static_cast<size_t>(longest)]];
  }
  while (room > 0)
    for (int i = leaves - 1; i >= 0 && room > 0; --i)
      if (share(i) <= room) {
        room -= share(i);
        --lengths[order[static_cast<size_t>(i)]];
      }
  return lengths;
}

bool huffman_complete(const HuffmanLengths& lengths) {
  int sum = 0;
  for (uint8_t length : lengths) {
    if (length > kHuffmanBits) return false;
    if (length > 0) sum += 1 << (kHuffmanBits - length);
  }
  return sum == 1 << kHuffmanBits;
}

size_t huffman_table_bytes(uint8_t first, uint8_t last) {
  return (static_cast<size_t>(last - first) + 2) / 2;
}
size_t HuffmanPlan::table_bytes() const {
  return huffman_table_bytes(first, last);
}

HuffmanPlan plan_huffman(const uint32_t (*quarter)[256]) {
  HuffmanPlan plan;
  bool any = false;
  for (size_t s = 0; s < 256; ++s) {
    plan.counts[s] = quarter[0][s] + quarter[1][s] + quarter[2][s] + quarter[3][s];
    if (plan.counts[s] == 0) continue;
    if (!any) plan.first = static_cast<uint8_t>(s);
    plan.last = static_cast<uint8_t>(s);
    any = true;
  }
  if (plan.first == plan.last) return plan;
  plan.lengths = huffman_lengths(plan.counts);
  for (int q = 0; q < 4; ++q) {
    size_t bits = 0;
    for (size_t s = plan.first; s <= plan.last; ++s) bits += size_t{quarter[q][s]} * plan.lengths[s];
    plan.bytes[q] = (bits + 7) / 8;
  }
  return plan;
}

void write_huffman_table(const HuffmanPlan& plan, std::byte* out) {
  for (size_t s = plan.first; s <= plan.last; s += 2)
    *out++ = static_cast<std::byte>(plan.lengths[s] | (s < plan.last ? plan.lengths[s + 1] << 4 : 0));
}

bool read_huffman_table(const std::byte* in, uint8_t first, uint8_t last, HuffmanLengths& lengths) {
  lengths = {};
  for (size_t s = 0; s <= static_cast<size_t>(last - first); ++s)
    lengths[first + s] = static_cast<uint8_t>(static_cast<uint8_t>(in[s / 2]) >> s % 2 * 4 & 15);
  return huffman_complete(lengths);
}

}  // namespace thinwire
