// The site objects that a layer is given. A layer never sees groups, communicators or codecs: only these.
#pragma once

#include "parallel/channel/mesh.h"
#include "parallel/sites/control.h"
#include "parallel/sites/gradient_reduction.h"
#include "parallel/sites/pp_boundary.h"
#include "parallel/sites/sequence.h"
#include "parallel/sites/tp_activation.h"
#include "parallel/sites/zero_parameter.h"

namespace thinwire {

// Default: one rank, where every exchange returns a finished Ticket at no cost.
struct Ports {
  TpActivation tp;
  PpBoundary pp;
  SequenceExchange sequence;
  GradientReduction dp, embedding;
  ZeroParameter zero, embedding_zero;  // the latter: of an embedding that two stages share
  Control control;
};

// tied_across_stages: the model's head shares the embedding and there is more than one stage. pipeline_parts: tensor
// ranks hold the same activations, and send them to the next stage in parts (PpBoundary).
Ports make_ports(Mesh& mesh, const Placement& placement, bool sequence_parallel, bool tied_across_stages,
                 bool pipeline_parts = false);

// All ranks together, when all have made their ports, and before any of them sends from device memory: makes the
// connections between devices (Mesh::use_device). What one rank throws here is agreed on only where all come to it
// (AgreedError): others may be inside NCCL, waiting for this rank, which then ends the job by itself (Job::end_all).
void connect_ports(Mesh& mesh, Ports& ports);

}  // namespace thinwire
