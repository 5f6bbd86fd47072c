// Writes recorded.json: answers of the kubelet as its own Go types encode them, each pod with its JSON beside.
// Run in a module that requires k8s.io/kubernetes v1.37.2: go run encode.go < pods.json > recorded.json
package main

import (
	"encoding/hex"
	"encoding/json"
	"os"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	res "k8s.io/kubelet/pkg/apis/podresources/v1"
	pods "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func wire(m proto.Message) string { return hex.EncodeToString(must(proto.Marshal(m))) }

type recordedPod struct {
	JSON json.RawMessage `json:"json"`
	Hex  string          `json:"hex"`
}

func main() {
	var given []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		panic(err)
	}
	out := map[string]any{}
	var recorded []recordedPod
	var events []string
	for _, text := range given {
		var pod corev1.Pod
		if err := json.Unmarshal(text, &pod); err != nil {
			panic(err)
		}
		bytes := must(pod.Marshal())
		recorded = append(recorded, recordedPod{must(json.Marshal(pod)), hex.EncodeToString(bytes)})
		events = append(events, wire(&pods.WatchPodsEvent{Type: pods.EventType_ADDED, Pod: bytes}))
	}
	events = append(events, wire(&pods.WatchPodsEvent{Type: pods.EventType_INITIAL_SYNC_COMPLETE}))
	var gone corev1.Pod
	gone.Name, gone.Namespace, gone.UID = "chat-0", "llm", "11111111-2222-3333-4444-555555555555"
	events = append(events, wire(&pods.WatchPodsEvent{Type: pods.EventType_DELETED, Pod: must(gone.Marshal())}))
	out["pods"] = recorded
	out["watch"] = events

	numa := func(id int64) *res.TopologyInfo { return &res.TopologyInfo{Nodes: []*res.NUMANode{{ID: id}}} }
	gpu := func(resource string, node int64, ids ...string) *res.ContainerDevices {
		return &res.ContainerDevices{ResourceName: resource, DeviceIds: ids, Topology: numa(node)}
	}
	share := "9f1c"
	out["list"] = wire(&res.ListPodResourcesResponse{PodResources: []*res.PodResources{
		{Name: "chat-0", Namespace: "llm", Containers: []*res.ContainerResources{
			{Name: "sglang", CpuIds: []int64{0, 1, 200}, Devices: []*res.ContainerDevices{
				gpu("nvidia.com/gpu", 0, "GPU-aaaa"), gpu("nvidia.com/gpu", 1, "GPU-bbbb")},
				Memory: []*res.ContainerMemory{{MemoryType: "memory", Size: 1 << 40, Topology: numa(1)}}},
			{Name: "proxy"},
		}},
		{Name: "slice-0", Namespace: "llm", Containers: []*res.ContainerResources{
			{Name: "main", Devices: []*res.ContainerDevices{
				gpu("nvidia.com/mig-1g.10gb", 0, "MIG-cccc"), gpu("nvidia.com/gpu.shared", 0, "GPU-aaaa::2", "GPU-aaaa::3"),
				gpu("example.com/nic", 0, "nic0")}},
		}},
		{Name: "claim-0", Namespace: "llm", Containers: []*res.ContainerResources{
			{Name: "main", DynamicResources: []*res.DynamicResource{
				{ClaimName: "claim-0-gpu", ClaimNamespace: "llm", ClaimResources: []*res.ClaimResource{
					{CdiDevices: []*res.CDIDevice{{Name: "k8s.gpu.nvidia.com/claim=77-gpu-0"}},
						DriverName: "gpu.nvidia.com", PoolName: "node-a", DeviceName: "gpu-0", ShareId: &share},
					{CdiDevices: []*res.CDIDevice{{Name: "k8s.gpu.nvidia.com/device=gpu-1"}}}}},
				{ClaimName: "nic", ClaimNamespace: "llm", ClaimResources: []*res.ClaimResource{
					{DriverName: "dra.net", PoolName: "node-a", DeviceName: "nic0"}}}}},
		}},
		{Name: "web", Namespace: "default", Containers: []*res.ContainerResources{{Name: "nginx"}}},
	}})
	out["allocatable"] = wire(&res.AllocatableResourcesResponse{
		CpuIds: []int64{0, 1, 2}, Memory: []*res.ContainerMemory{{MemoryType: "memory", Size: 5}},
		Devices: []*res.ContainerDevices{gpu("nvidia.com/gpu", 0, "GPU-aaaa"), gpu("nvidia.com/gpu.shared", 1, "GPU-cccc::0"),
			gpu("example.com/nic", 0, "nic0")}})

	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(out); err != nil {
		panic(err)
	}
}
