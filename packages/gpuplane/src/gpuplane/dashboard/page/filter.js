// Which nodes and GPUs the words of the filter mean: "model:H100 ns:ml is:lost gpu-t".

const STATES = {
  lost: (node, index) => (node.lost || []).includes(index),
  broken: (node, index) => String(index) in (node.faults || {}),
  waiting: (node) => "waits" in node,
  ready: (node) => !("waits" in node),
  held: (node, index) => node.held[index] > 0,
  idle: (node, index) => (node.idle || []).includes(index),
  busy: (node, index) => node.busy?.[index] > 0,
  free: (node, index) => node.held[index] === 0 && !("waits" in node) && !(String(index) in (node.faults || {})),
};

// Returns matches(name, node, index), and the words that mean nothing.
export function reading(words) {
  const tests = [];
  const unknown = [];
  for (const word of words.split(/\s+/).filter(Boolean)) {
    const [key, ...rest] = word.split(":");
    const value = rest.join(":").toLowerCase();
    if (!rest.length) tests.push((name) => name.toLowerCase().includes(word.toLowerCase()));
    else if (key === "node") tests.push((name) => name.toLowerCase().includes(value));
    else if (key === "model") tests.push((name, node) => node.model.toLowerCase().includes(value));
    else if (key === "ns") tests.push((name, node) => (node.spaces || []).includes(value));
    else if (key === "is" && Object.hasOwn(STATES, value)) tests.push((name, node, index) => STATES[value](node, index));
    else unknown.push(word);
  }
  return { matches: (name, node, index) => tests.every((test) => test(name, node, index)), unknown };
}
