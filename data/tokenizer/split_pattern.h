// The regular expressions by which tokenizer.json cuts text into words, in the words of ICU.
#pragma once

#include <string>

namespace thinwire {

// The tokenizers library runs such a pattern by Oniguruma. What means the same to ICU is translated:
//   characters, ".", "|", sets, and the groups ( (?: (?i: (?> (?= (?! (?<= (?<!
//   ? * + with a lazy ? or possessive + behind them, {n} {n,} {n,m}
//   \s \S \d \D \r \n \t \f \xHH \uHHHH, and \p{..} \P{..} with a general category other than C, Cn, Cs, Mn, Mc
// All else is refused, since ids would differ: anchors, \w, \b, back references, && and [:names:] in sets, (?i),
// scripts. Categories are those of Unicode 16.0, whatever version ICU has (70 or later). Throws Error(kBadData):
// "WHERE: the split pattern at character 17: ...".
std::string icu_split_pattern(const std::string& pattern, const std::string& where);

}  // namespace thinwire
