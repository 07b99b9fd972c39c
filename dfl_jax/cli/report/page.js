'use strict';
const $ = (id) => document.getElementById(id);
const data = JSON.parse($('page-data').textContent);
const on = (ids, act) => ids.forEach((id) => $(id).addEventListener('input', act));

const element = (tag, fields) => Object.assign(document.createElement(tag), fields);

for (const {id, firstElementChild: head} of document.querySelectorAll('section')) {
  document.querySelector('nav').append(element('a', {href: `#${id}`, textContent: head.textContent}));
}

for (const button of document.querySelectorAll('th button')) button.onclick = () => {
  const head = button.parentNode, body = head.closest('table').tBodies[0];
  const sign = head.ariaSort === 'ascending' ? -1 : 1;
  const text = (row) => row.cells[head.cellIndex].textContent;
  const number = (row) => parseFloat(text(row).replace(/[>,]/g, ''));
  const order = head.className === 'n' // rows without a number stay at the end
    ? (a, b) => isNaN(number(a)) - isNaN(number(b)) || sign * (number(a) - number(b))
    : (a, b) => sign * text(a).localeCompare(text(b), undefined, {numeric: true});
  [...head.parentNode.cells].forEach((each) => each.removeAttribute('aria-sort'));
  head.ariaSort = sign > 0 ? 'ascending' : 'descending';
  body.append(...[...body.rows].sort(order));
};

function compare() {
  const [first, second] = [$('first').value, $('second').value];
  $('compared').replaceChildren(...Object.entries(data.compared).map(([name, values]) => {
    const texts = [name, values[first], values[second]];
    const row = element('tr', {className: texts[1] === texts[2] ? '' : 'differs'});
    row.append(...texts.map((textContent) => element('td', {textContent})));
    return row;
  }));
}
if ($('first')) {
  if ($('second').value === $('first').value) $('second').selectedIndex = 1;
  on(['first', 'second'], compare);
  compare();
}

async function embedded(figures, id) {
  await Bokeh.embed.embed_item(figures, id);
  const drawing = Bokeh.documents.at(-1);
  return [drawing.roots()[0].children, (name) => drawing.get_model_by_name(name)];
}

async function curves({x, y, lines, figures}) {
  const [charts, model] = await embedded(figures, 'curves-chart');
  const shown = [...document.querySelectorAll('#lines input')];
  function draw() {
    const [across, up] = [$('x').value, $('y').value];
    const which = 2 * $('log-y').checked + $('log-x').checked;
    lines.forEach((line, i) => {
      const of = line.columns, there = shown[i].checked && of[across] && of[up];
      model(`line ${i} of chart ${which}`).data = there ? {x: of[across], y: of[up], low: line.low[up] ?? of[up],
        high: line.high[up] ?? of[up]} : {x: [], y: [], low: [], high: []};
    });
    const chart = charts[which];
    chart.below[0].axis_label = x[across];
    chart.left[0].axis_label = y[up];
    for (const span of chart.center) {
      if (span.name === 'target') span.visible = up.includes('accuracy');
    }
    chart.toolbar.tools.find((tool) => tool.name === 'hover').tooltips = [['', '$name'],
      [x[across], '@x{0,0.[0000]}'], [y[up], '@y{0,0.[0000]}'],
      ['seeds', '@low{0,0.[0000]} to @high{0,0.[0000]}']];
    charts.forEach((each) => { each.visible = each === chart; });
    chart.reset.emit();
  }
  on(['x', 'y', 'log-x', 'log-y', 'lines'], draw);
  draw();
}

async function clients({runs, figures}) {
  const [charts, model] = await embedded(figures, 'clients-chart');
  const nodes = model('clients'), colours = model('colours'), slider = $('client-round');
  const chosen = () => runs[$('client-run').value];
  function colour() {
    const {rounds, values, range, caption, x} = chosen(), metric = $('client-metric').value;
    slider.max = Math.max(0, rounds.length - 1);
    [colours.low, colours.high] = range[metric] ?? [0, 1];
    nodes.data = {...nodes.data, value: values[metric]?.[slider.value] ?? x.map(() => NaN)};
    $('client-at').textContent = rounds[slider.value] ?? '-';
    $('client-caption').textContent = caption
      + (values[metric] ? '' : `; the run has no ${metric || 'values'} of its clients`);
  }
  function draw() {
    const {x, y, links, samples, attackers} = chosen(), none = x.map(() => 0), bars = model('samples');
    const client = x.map((_, i) => i), degrees = x.map(() => 0);
    const all = client.map((i) => samples.reduce((sum, of) => sum + of[i], 0));
    links.flat().forEach((each) => { degrees[each] += 1; });
    nodes.data = {x, y, client, links: degrees, value: none, samples: all};
    const held = Object.keys(bars.data).filter((name) => name.startsWith('class '));
    bars.data = {client, samples: all,
      ...Object.fromEntries(held.map((name, c) => [name, samples[c] ?? none]))};
    const liars = model('attackers');
    if (liars) liars.data = {x: attackers.map((i) => x[i]), y: attackers.map((i) => y[i])};
    model('links').data = {x0: links.map(([a]) => x[a]), y0: links.map(([a]) => y[a]),
      x1: links.map(([, b]) => x[b]), y1: links.map(([, b]) => y[b])};
    colour();
    charts.forEach((chart) => chart.reset.emit());
  }
  on(['client-run'], draw);
  on(['client-metric', 'client-round'], colour);
  draw();
}

Promise.all([data.curves && curves(data.curves), data.clients.figures && clients(data.clients)])
  .then(() => { document.body.dataset.ready = 'yes'; });
