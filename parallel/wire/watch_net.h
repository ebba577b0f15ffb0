// How watchdogs ask each other over TCP of their own: whom an engine of communication or a directory that hangs keeps
// from talking still answers here. Files, whose attributes a network file system caches, are asked where this fails.
//
// One question, one answer, one connection: secret, who asks, whom; then the report of the one who was asked. Nothing
// is connected before something is wrong. Questions without the job's secret are dropped.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/core/file.h"
#include "parallel/wire/watch_clock.h"

namespace thinwire {

class WatchNet {
 public:
  WatchNet();  // listens, if it can, at a port of its own
  ~WatchNet();
  WatchNet(const WatchNet&) = delete;
  WatchNet& operator=(const WatchNet&) = delete;

  // What the others need to reach this one: "PORT ADDRESS ...", empty where it does not listen.
  const std::string& address() const { return address_; }
  static std::string new_secret();  // 32 hexadecimal digits
  // addresses: per rank. Once, before the rest.
  void join(int rank, std::vector<std::string> addresses, const std::string& secret);

  // The rest belongs to one thread. None of it waits but turn(): it moves what can be moved, answers with `report`, and
  // returns after so many seconds, or as soon as somebody has asked, an answer is complete, or `wake` can be read.
  void turn(double seconds, int wake, const std::function<std::string()>& report, WatchClock& clock);
  // Sends the question, once: an address after the other, until one of them answers.
  void ask(int peer);
  // What the peer has answered; empty: nothing yet.
  const std::string& answer(int peer) const;
  // True: a machine has taken one of the questions, so that somebody is there, or was.
  bool reached() const;
  // The lowest rank that has asked this one, INT_MAX: none.
  int lowest_asker() const { return lowest_asker_; }

 private:
  struct Question;
  struct Caller;
  static void connect(Question& question, WatchClock::Time now);
  static bool move(Question& question, short events, WatchClock::Time now);
  bool serve(Caller& caller, const std::function<std::string()>& report);

  std::string address_, secret_;
  int rank_ = 0, lowest_asker_;
  std::vector<std::string> addresses_;
  Descriptor listener_;
  std::map<int, Question> questions_;  // by peer
  std::vector<Caller> callers_;
};

}  // namespace thinwire
