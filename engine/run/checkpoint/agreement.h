// Actions that all ranks of a job take together: an error on one rank becomes the same error on all.
#pragma once

#include <cstdint>
#include <functional>

namespace thinwire {

class Control;

// Of a program that has no other ranks: the default wherever checkpoints take a Control.
Control& one_rank();

// All of these are collectives on the calling thread.
//
// Runs `action` on every rank, or on rank 0 alone; when it throws anywhere, every rank throws the same Error (of the
// first rank that failed). With one rank what it throws comes through as it is.
void on_all_ranks(Control& control, const std::function<void()>& action);
void on_rank_0(Control& control, const std::function<void()>& action);

// The same for an action that may take long, and tells how many bytes it has come further. Behind every `meet_every` of
// them all ranks meet: nobody waits for longer than another rank takes for so many, however slow the storage, and an
// error of one ends the actions of the others where they meet next. The action holds no collectives of its own.
using GotOn = std::function<void(uint64_t bytes)>;
inline constexpr uint64_t kMeetEvery = uint64_t{256} << 20;
void on_all_ranks(Control& control, uint64_t meet_every, const std::function<void(const GotOn& got_on)>& action);

}  // namespace thinwire
