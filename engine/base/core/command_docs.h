// What the table of options of a program says in other places: help on a terminal, pages of the manual, words to
// complete.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace thinwire {

// Words filled to lines of `width`, each behind `indent` blanks and ended by a line end; the first may go on in
// `first`.
std::string filled(const std::string& text, size_t indent, size_t width, const std::string& first = "");

// Text of a page of the manual (roff), in filled lines, or as it stands.
std::string roff(const std::string& text);
std::string roff_lines(const std::string& text);
// One entry of a list: a head in bold and what it means.
std::string roff_entry(const std::string& head, const std::string& meaning);

// Help in 80 columns, without the ranges that the messages name.
void set_help_style(CLI::App& app);
// The page behind its NAME: SYNOPSIS, DESCRIPTION, OPTIONS or COMMANDS, NOTES. `command`: "thinwire train".
std::string man_body(const CLI::App& app, const std::string& command);
// Lines "place<tab>words": what may stand behind the words `place` ("train", "checkpoint export", "train --format"):
// options, subcommands, values; "=" stands for configuration keys.
std::string completion_words(const CLI::App& app, const std::string& program);

}  // namespace thinwire
