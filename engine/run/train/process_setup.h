// What a program sets up: OpenMP before it starts, signals, and how an Error becomes an exit code.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/base/core/program.h"
#include "parallel/wire/keeper.h"

namespace thinwire {

// OpenMP threads that spin while idle were measured to cost 100 times the CPU time on shared cores. The runtime reads
// OMP_WAIT_POLICY before main, so this sets it and executes the program again, once. A value set by the user is kept.
void ensure_passive_waiting(char** argv);

class Job;

// For run_program.
inline constexpr char kMemoryHint[] = "; --dry-run prints what a configuration needs";

// run_program for several ranks, started together or alone: a failure that all ranks agreed on is printed by
// rank 0 and every rank returns its code; a failure of one rank is printed by that rank, which then ends the others
// with its code. Returns the exit code; by then MPI is finalised.
//
// Of several ranks each gets a keeper (keeper.h), which is this process: body() runs in its child. `start_seconds`, and
// `on_end` are the keeper's.
int run_job(const std::string& name, const std::function<int(Job&)>& body, const Keeper::Options& keeping = {});

// Signals as a wish: TERM, INT and USR1 ask to finish the step, save and leave with 75. After a TERM or INT a second
// INT, or a TERM more than two seconds later, ends the process at once with 75, unsaved.
//
// Installs handlers for SIGTERM, SIGINT and SIGUSR1. SIGUSR2 is left alone: some launchers die of it.
void install_signal_handlers();

// The signal that asked to stop, or 0.
int stop_signal();
const char* signal_name(int signal);

}  // namespace thinwire
