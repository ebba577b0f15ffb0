// Signals as a wish: TERM, INT and USR1 ask to finish the step, save and leave with 75; a second INT, or a TERM more
// than two seconds later, means leave now.
#pragma once

namespace thinwire {

// Installs handlers for SIGTERM, SIGINT and SIGUSR1, and ignores SIGXFSZ so that a file-size limit is an error of
// write(2). SIGUSR2 is left alone: some launchers die of it.
void install_signal_handlers();

// The signal that asked to stop, or 0.
int stop_signal();
const char* signal_name(int signal);

}  // namespace thinwire
