// NFC: decompose canonically, sort marks by combining class, compose (Unicode Standard Annex 15; Hangul by arithmetic).
#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "data/tokenizer/unicode.h"

namespace thinwire {
namespace {

struct ClassRange {
  uint32_t first, last;
  uint32_t value;
};
// code = first + second (second 0: a single replacement); `composes`: NFC also puts the pair together again.
struct Decomposition {
  uint32_t code, first, second;
  uint32_t composes;
};

#include "data/tokenizer/unicode_nfc.inc"

// Hangul syllables, The Unicode Standard section 3.12.
constexpr uint32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr uint32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

uint32_t combining_class(uint32_t code) {
  if (code < 0x300) return 0;
  const auto* found = std::upper_bound(std::begin(kCombiningClasses), std::end(kCombiningClasses), code,
                                       [](uint32_t c, const ClassRange& r) { return c < r.first; });
  return found != std::begin(kCombiningClasses) && code <= std::prev(found)->last ? std::prev(found)->value : 0;
}

void decompose(uint32_t code, std::vector<uint32_t>& out) {
  if (code - kSyllable < kSyllables) {
    const uint32_t s = code - kSyllable;
    out.push_back(kLead + s / (kVowels * kTails));
    out.push_back(kVowel + s % (kVowels * kTails) / kTails);
    if (s % kTails != 0) out.push_back(kTail + s % kTails);
    return;
  }
  const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), code,
                                       [](const Decomposition& d, uint32_t c) { return d.code < c; });
  if (code < 0xC0 || found == std::end(kDecompositions) || found->code != code) {
    out.push_back(code);
    return;
  }
  decompose(found->first, out);
  if (found->second != 0) decompose(found->second, out);
}

// The primary composite of a pair, 0 if there is none.
uint32_t compose(uint32_t first, uint32_t second) {
  if (first - kLead < kLeads && second - kVowel < kVowels) {
    return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  }
  if (first - kSyllable < kSyllables && (first - kSyllable) % kTails == 0 && second > kTail &&
      second < kTail + kTails) {
    return first + (second - kTail);
  }
  static const std::unordered_map<uint64_t, uint32_t> pairs = [] {
    std::unordered_map<uint64_t, uint32_t> map;
    for (const Decomposition& d : kDecompositions) {
      if (d.composes != 0) map.emplace(static_cast<uint64_t>(d.first) << 32 | d.second, d.code);
    }
    return map;
  }();
  const auto found = pairs.find(static_cast<uint64_t>(first) << 32 | second);
  return found == pairs.end() ? 0 : found->second;
}

struct Mark {
  uint32_t code, combining;
};

// Normalises one stretch of code points and appends it.
void flush(std::vector<uint32_t>& codes, std::string& out) {
  std::vector<Mark> marks;
  std::vector<uint32_t> parts;
  for (uint32_t code : codes) {
    parts.clear();
    decompose(code, parts);
    for (uint32_t part : parts) marks.push_back({part, combining_class(part)});
  }
  codes.clear();
  for (size_t i = 0; i < marks.size();) {
    size_t end = i;
    while (end < marks.size() && marks[end].combining != 0) ++end;
    std::stable_sort(marks.begin() + static_cast<ptrdiff_t>(i), marks.begin() + static_cast<ptrdiff_t>(end),
                     [](const Mark& a, const Mark& b) { return a.combining < b.combining; });
    i = end + (end == i ? 1 : 0);
  }
  std::vector<Mark> composed;
  size_t starter = SIZE_MAX;  // index in `composed` of the last character of class 0
  for (const Mark& mark : marks) {
    if (starter != SIZE_MAX) {
      // Blocked when something of class 0, or of the same or a higher class, stands between starter and mark.
      const bool adjacent = starter + 1 == composed.size();
      if (adjacent || (mark.combining != 0 && composed.back().combining < mark.combining)) {
        const uint32_t whole = compose(composed[starter].code, mark.code);
        if (whole != 0) {
          composed[starter].code = whole;
          continue;
        }
      }
    }
    if (mark.combining == 0) starter = composed.size();
    composed.push_back(mark);
  }
  for (const Mark& mark : composed) append_utf8(out, mark.code);
}

}  // namespace

bool is_plainly_nfc(std::string_view text) {
  // U+0300 is CC 80: every lead byte below CC starts a code point below it.
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0xCC; });
}

std::string nfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  std::vector<uint32_t> codes;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (!c.valid) {
      flush(codes, out);
      out.push_back(text[at]);
    } else {
      // ASCII composes with nothing before it, so stretches stay short.
      if (c.code < 0x80) flush(codes, out);
      codes.push_back(c.code);
    }
    at += c.length;
  }
  flush(codes, out);
  return out;
}

}  // namespace thinwire
