// Builds the channels of every site from the mesh.
#include "parallel/sites/ports.h"

#include <numeric>

namespace thinwire {

Ports make_ports(Mesh& mesh, const Placement& placement, bool sequence_parallel, bool tied_across_stages) {
  const MeshShape& shape = mesh.shape();
  const Coordinates& at = mesh.at();
  const bool ends = at.pipeline == 0 || at.pipeline == shape.pipeline - 1;
  const bool tied = tied_across_stages && shape.pipeline > 1 && ends;
  const std::vector<int> tensor = tensor_ranks(shape, at), pipeline = pipeline_ranks(shape, at);
  std::vector<int> world(static_cast<size_t>(shape.ranks()));
  std::iota(world.begin(), world.end(), 0);

  Ports ports;
  ports.tp = TpActivation(mesh.channel(GroupKind::kTpForward, Site::kTpForward, tensor),
                          mesh.channel(GroupKind::kTpBackward, Site::kTpBackward, tensor),
                          mesh.channel(GroupKind::kTpControl, Site::kControl, tensor), sequence_parallel);
  ports.pp = PpBoundary(mesh.channel(GroupKind::kPpForward, Site::kPpForward, pipeline),
                        mesh.channel(GroupKind::kPpBackward, Site::kPpBackward, pipeline));
  ports.dp = DpGradient(make_gradient_channels(mesh, placement, false));
  ports.zero = ZeroParameter(make_parameter_channels(mesh, placement, false),
                             tied ? make_parameter_channels(mesh, placement, true) : ParameterChannels{});
  if (tied) ports.embedding = EmbeddingSync(make_gradient_channels(mesh, placement, true));
  ports.control = Control(mesh.channel(GroupKind::kWorld, Site::kControl, world));
  return ports;
}

}  // namespace thinwire
