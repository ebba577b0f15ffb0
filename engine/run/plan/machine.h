// How fast one machine works: rates by op and size, by codec, and what messages cost its cores.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/run/config/json_text.h"

namespace thinwire {

class FieldErrors;

// Rate by amount of work, between the points by the logarithm of the amount, beyond them as at the last one.
class RateCurve {
 public:
  void add(double amount, double rate) { points_.emplace_back(amount, rate); }
  bool empty() const { return points_.empty(); }
  double at(double amount) const;

 private:
  std::vector<std::pair<double, double>> points_;  // ascending
};

// Of an op: with the machine to itself, and with all cores busy with the like.
struct OpRates {
  RateCurve alone, loaded;  // loaded: may be empty
};
struct OpTime {
  double alone = 0.0, loaded = 0.0;
};

// What a transport takes of the cores that also compute, in seconds.
struct MessageCosts {
  double send_message = 0.0, receive_message = 0.0;  // each
  double send_byte = 0.0, receive_byte = 0.0;
  // Bytes that a connection takes over at once, and then messages leave before their receive is posted, as over TCP
  // without a rendezvous. 0: small ones alone do, and a sender is done when all are on the wire.
  double socket_bytes = 0.0;
};

struct CodecRates {
  double encode = 0.0, decode = 0.0;  // bytes of fp32 input per second
  double call = 0.0;                  // seconds of each call beside that
  double encode_time(double bytes, double calls) const { return bytes / encode + calls * call; }
  double decode_time(double bytes, double calls) const { return bytes / decode + calls * call; }
};

// Seconds per byte that a tensor takes longer which lies in main memory, not in a core's cache: to encode (per byte of
// fp32; with a residual, too), to decode, to send or receive as it is.
struct FromMemory {
  double encode = 0.0, residual = 0.0, decode = 0.0, message = 0.0;
  // Of it what a rank takes that holds so many bytes: none where the near ones of scripts/calibrate would hold them,
  // all from the far ones on, and between the two by the logarithm.
  FromMemory of_rank(double bytes) const;
};

struct Machine {
  std::string name, source;
  bool ranking_only = true;       // not calibrated: its predictions order layouts, they are no times
  bool gpu = false;               // computes beside the cores
  int cores = 1;                  // 0: the file states none, and read_cluster takes ranks_per_node
  double loaded_slowdown = 1.0;   // how much longer work without a loaded rate takes with all cores busy,
  double crowded_slowdown = 1.0;  // and compute that takes turns with another rank's on one core, beside its half
  double uneven = 0.0;            // by how much the slowest of ranks on equal work is slower than their mean
  // Bytes that a rank of a job has beside its plan (dry_run.h): MPI's connections and threads, and what program and
  // libraries have more here than planned, or less. As not measured: MPICH 4.0 over UCX.
  double beside_plan = 3 << 20;
  double flops = 1e9, bytes_per_second = 1e9;  // of ops without a curve, and the cost of starting one
  double op_seconds = 0.0;
  std::map<std::string, OpRates> products;   // op -> FLOP/s by FLOPs of a call: matmul, attention_*
  std::map<std::string, OpRates> passes;     // op -> bytes/s by bytes of a call
  std::map<std::string, CodecRates> codecs;  // by a coder's name
  CodecRates any_codec;
  // Seconds per byte that they add, from entries measured with and without.
  double hadamard_encode = 0.0, hadamard_decode = 0.0, residual_encode = 0.0;
  FromMemory from_memory;                        // beside `codecs`, `network` and `memory`, which are of small tensors
  double sum_bytes_per_second = 1e10;            // of each contribution that is added up
  MessageCosts network, memory;                  // between nodes; inside a node
  double waiter_seconds = 0.0;                   // until a waiting thread notices what has arrived
  double crowded_wake = 0.0;                     // until one that sleeps gets a core on which another works,
  double crowded_yield = 0.0;                    // and until one gets it back that yields
  double waiting_share = 0.0;                    // of a core that others compute on: a waiting thread's polls
  double shortest_nap = 0.0, longest_nap = 0.0;  // of the progress thread, while nobody waits
  double poll = 0.0;                             // of a core, for each of its polls

  // Bytes per second that a rank hands to the network at most: what a shaper lets pass at once.
  double burst_rate() const { return network.send_byte > 0.0 ? 1.0 / network.send_byte : 1e12; }
  OpTime op_time(const std::string& op, double flops, double bytes) const;
  // name: Coder::name(); the entry that begins alike stands in for one that was not measured, with what a transform and
  // a residual cost where they were.
  CodecRates codec(const std::string& name) const;
};

Machine read_machine(const std::string& file);
// path: in front of keys in messages ("machine.").
Machine parse_machine(const JsonTree& tree, const std::string& path, FieldErrors& errors);

}  // namespace thinwire
