// Texts made from the options that a program declares: help on a terminal, manual pages, words for shell completion.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace thinwire {

// The words of `text` in lines of at most `width` columns, indented by `indent` blanks, each ended by a newline. The
// first line begins with `first` in place of the blanks, unless that is empty.
std::string filled(const std::string& text, size_t indent, size_t width, const std::string& first = "");

// Text escaped for a manual page (roff): refilled, or with its lines kept.
std::string roff(const std::string& text);
std::string roff_lines(const std::string& text);
// One entry of a manual page's list: a head in bold, and what it means.
std::string roff_entry(const std::string& head, const std::string& meaning);

// `app` and its subcommands print help in 80 columns, without ranges of values: error messages name those.
void set_help_style(CLI::App& app);
// The manual page after its NAME: SYNOPSIS, DESCRIPTION, OPTIONS or COMMANDS, NOTES. `command`: "thinwire train".
std::string man_body(const CLI::App& app, const std::string& command);
// Lines "place<tab>words": the options, subcommands or values that may follow `place` on a command line ("train",
// "checkpoint export", "train --format"); "=" stands for configuration keys. program: the first word of every place.
std::string completion_words(const CLI::App& app, const std::string& program);

}  // namespace thinwire
