// The style sheet and the script that every report page carries inside itself; no page loads anything from elsewhere.
#pragma once

#include <string_view>

namespace thinwire {

// Palette classes c0..c7, light and dark by the reader's own setting, and a form that prints.
std::string_view report_style();
// Crosshair and tooltip of the line charts; the page is complete without it.
std::string_view report_script();

}  // namespace thinwire
