// File access that may hang for ever, on a thread that nobody waits for longer than he wants to.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace thinwire {

class FileLane {
 public:
  explicit FileLane(const char* name);  // of its thread, at most 15 characters
  // What is under way may go on behind it: a thread that hangs is left to itself.
  ~FileLane();
  FileLane(const FileLane&) = delete;
  FileLane& operator=(const FileLane&) = delete;

  // Runs `task` behind those before it, and waits so long for its end. True: it is over. False: it hangs, or one before
  // it does; it may still run at any later time, so what it uses must be its own. Its exceptions are dropped.
  bool within(double seconds, std::function<void()> task);
  bool idle() const;  // nothing is under way

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace thinwire
